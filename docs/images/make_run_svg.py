"""Draws `run.svg`: the display of `batchline run` on a terminal, half-way through a real batch.

    .venv/bin/python -m docs.images.make_run_svg

It starts `batchline simulate` and `batchline run` as processes, the latter on a terminal of 110 columns, and
draws what an emulator shows there.
"""

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support.processes import simulated, write_requests
from tests.support.terminals import Terminal, on_terminal

LINES = 20_000
COLUMNS = 110
PICTURE = Path(__file__).with_name("run.svg")
# A model server that answers in 20 to 30 ms, and refuses one request in twenty.
UPSTREAM = ("--latency", "20", "--jitter", "10", "--error-rate", "0.05")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batchline-svg-") as folder, simulated(*UPSTREAM) as upstream:
        prompts = write_requests(Path(folder, "prompts.jsonl"), LINES)
        command = ("run", str(prompts), "--upstream", upstream.url, "--data-dir", str(Path(folder, "data")))
        with on_terminal(*command, columns=COLUMNS) as terminal:
            terminal.wait_until("most of the batch", lambda lines: re.search(r" 6\d\.\d %", "\n".join(lines)))
            picture = picture_of(terminal)
            terminal.until_ended()
    PICTURE.write_text(picture)


def picture_of(terminal: Terminal) -> str:
    console = Console(
        record=True, width=COLUMNS, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )
    console.print("$ batchline run prompts.jsonl --upstream http://127.0.0.1:8000", highlight=False)
    for row in terminal.styled():
        console.print(Text.assemble(*row), highlight=False, no_wrap=True, crop=False)
    # The picture shall not ask another host for a font.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="batchline run"), flags=re.DOTALL)


if __name__ == "__main__":
    main()
