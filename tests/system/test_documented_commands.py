"""Every console block of README, tutorial and how-to pages runs, and prints what the page shows."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.console import Command, differs, script_of
from tests.support.processes import PYTHON, simulated
from tests.support.repository import ROOT

PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
SERVER = re.compile(r"http://(localhost|127\.0\.0\.1):8000")
# Between the output of one command and the next; after it, the exit code.
MARK = "--- end of command "


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.timeout(900)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    commands = script_of(page).commands
    if not commands:
        return
    with simulated() as upstream:
        printed = run(commands, tmp_path, upstream.url)
    for command, (output, code) in zip(commands, printed, strict=True):
        if command.checked:
            shown = SERVER.sub("http://localhost:8000", "\n".join(command.expected))
            assert not differs(shown.splitlines(), output.replace(upstream.url, "http://localhost:8000")), (
                f"{name_of(page)}:{command.line}: {command.text}\nprinted:\n{output}"
            )
            assert code == 0 or command.expected, f"{name_of(page)}:{command.line}: {code}: {output}"


def run(commands: list[Command], folder: Path, upstream: str) -> list[tuple[str, int]]:
    """The output and the exit code of each."""
    lines = ["set +e"]
    for command in commands:
        # `$?` is the previous command's, as a page may show it.
        lines += ["(exit $code)", SERVER.sub(upstream, command.text), "code=$?", f"echo '{MARK}'$code"]
    data = folder / ".data"
    done = subprocess.run(
        ["bash", "-c", "code=0\n" + "\n".join(lines)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
            "BATCHLINE_DATA_DIR": str(data),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=840,
        check=False,
    )
    parts = re.split(rf"{re.escape(MARK)}(\d+)\n", done.stdout)
    return [(output, int(code)) for output, code in zip(parts[:-1:2], parts[1::2], strict=True)]
