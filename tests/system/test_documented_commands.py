"""Every console block of README, tutorial and how-to pages runs, and prints what the page shows."""

import os
import random
import re
import signal
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.console import PRELUDE, Command, differs, script_of
from tests.support.processes import PYTHON
from tests.support.repository import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "python-tutorial.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
# Those that pages use.
PORTS = ("8000", "8001", "8080", "11434")
PORT = re.compile(rf"(?<=[: ])({'|'.join(PORTS)})(?=\b)")
# Blocks that need a package index, a real model, another host, or a person. Prefer to make a block run.
NOT_RUN = 39
DEFAULT_PORTS = {"simulate": "8000", "serve": "8080"}
# Between the output of one command and the next; after it, the exit code.
MARK = "--- end of command "


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path, database_url: str) -> None:
    commands = script_of(page).commands
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    printed = run(commands, tmp_path, database_url, ports) if commands else []
    for command, (output, code) in zip(commands, printed, strict=False):
        said = f"{name_of(page)}:{command.line}: {command.text}\nexit code {code}, printed:\n{output}"
        displayed = replace(command, expected=tuple(with_ports(line, ports) for line in command.expected))
        assert not differs(displayed, output), said
        assert code == 0 or command.expected, said
    assert len(printed) == len(commands), f"{name_of(page)}: it ended at {commands[len(printed)]}"


def test_a_block_that_is_not_run_says_why() -> None:
    reasons = [reason for page in PAGES for reason in script_of(page).not_run]
    assert len(reasons) == NOT_RUN, "\n".join(reasons)


def run(
    commands: list[Command], folder: Path, database_url: str, ports: dict[str, str]
) -> list[tuple[str, int]]:
    """The output and the exit code of each."""
    lines = [PRELUDE, "code=0"]
    for command in commands:
        # `$?` is the previous command's, as a page may show it.
        lines += ["(exit $code)", with_ports(command.text, ports), "code=$?", f"echo '{MARK}'$code"]
        if not command.expected:
            lines.append("[ $code = 0 ] || exit")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("BATCHLINE_")}
    # Not a pipe: processes in the background have it, too.
    with (folder / ".printed").open("w+") as printed:
        process = subprocess.Popen(
            ["bash", "-c", "\n".join(lines)],
            cwd=folder,
            env={
                **kept,
                "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
                "COLUMNS": "80",
                "BATCHLINE_DATA_DIR": str(folder / ".data"),
                "BATCHLINE_DATABASE_URL": database_url,
                "DATABASE_URL": database_url,
                "CHECKOUT": str(ROOT),
            },
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(0)
        parts = re.split(rf"{re.escape(MARK)}(\d+)\n", printed.read())
    return [(output, int(code)) for output, code in zip(parts[:-1:2], parts[1::2], strict=True)]


def with_ports(text: str, ports: dict[str, str]) -> str:
    for name, port in DEFAULT_PORTS.items():
        text = re.sub(rf"batchline {name}(?!.* --port )", rf"\g<0> --port {port}", text)
    text = re.sub(r"postgresql://[\w.@/]+(:\d+)?", '"$DATABASE_URL"', text)
    return PORT.sub(lambda port: ports[port[0]], text)


def free_ports(count: int) -> list[str]:
    """Of those that the system gives to no connection by itself."""
    found: list[str] = []
    for port in random.sample(range(20_000, 30_000), 1_000):
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(str(port))
        if len(found) == count:
            break
    return found
