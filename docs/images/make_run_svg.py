"""Draws `run.svg`: the progress display of `batchline run`, half-way through a real batch.

    .venv/bin/python docs/images/make_run_svg.py

It starts `batchline simulate` and `batchline run` as processes of their own, watches the batch as
`batchline watch` does, and gives one of the snapshots to the display that a terminal would show.
"""

import asyncio
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from batchline.cli.display.progress import Gauge, LiveDisplay, Snapshot
from batchline.embedded import EmbeddedPostgres
from batchline.model import DEFAULT_TENANT
from batchline.store import batches, migrate
from batchline.store.session import Session

LINES = 30_000
DISPLAYED_AT = 0.62
PICTURE = Path(__file__).with_name("run.svg")
BATCHLINE = [sys.executable, "-m", "batchline"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="batchline-svg-") as folder:
        data_dir, prompts = Path(folder, "data"), write_prompts(Path(folder, "prompts.jsonl"))
        with EmbeddedPostgres.start(data_dir) as server, simulated_upstream() as url:
            migrate.ensure(server.url)
            run = [*BATCHLINE, "run", str(prompts), "--upstream", url, "--data-dir", str(data_dir), "--json"]
            with subprocess.Popen(run, stdout=subprocess.DEVNULL) as process:
                snapshot = asyncio.run(snapshot_of_newest_batch(server.url))
                process.wait()
    PICTURE.write_text(picture_of(snapshot))


def write_prompts(path: Path) -> Path:
    with path.open("w") as file:
        for number in range(LINES):
            body = {
                "model": "sim-small",
                "messages": [{"role": "user", "content": f"What is {number} squared?"}],
            }
            line = {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


@contextmanager
def simulated_upstream() -> Iterator[str]:
    """A model server that answers in 20 to 30 ms, and refuses one request in twenty."""
    faults = ["--latency", "20", "--jitter", "10", "--error-rate", "0.05"]
    command = [*BATCHLINE, "simulate", "--port", "0", "--json", *faults]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
        process.terminate()


async def snapshot_of_newest_batch(url: str) -> Snapshot:
    async with Session(url, "picture") as session:
        gauge = None
        while True:
            if gauge is None:
                newest = await batches.list_newest(session, DEFAULT_TENANT, limit=1)
                gauge = Gauge(session, newest[0].id) if newest else None
            else:
                _, snapshot = await gauge.read()
                if snapshot.done >= DISPLAYED_AT * snapshot.total:
                    return snapshot
            await asyncio.sleep(0.25)


def picture_of(snapshot: Snapshot) -> str:
    console = Console(
        record=True, width=110, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )
    console.print("$ batchline run prompts.jsonl --upstream http://127.0.0.1:8000", highlight=False)
    # Left before its first refresh, the display draws one frame: the one that it ends with.
    with LiveDisplay(console, "prompts.jsonl") as display:
        display.show(snapshot)
    # The picture shall not ask another host for a font.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="batchline run"), flags=re.DOTALL)


if __name__ == "__main__":
    main()
