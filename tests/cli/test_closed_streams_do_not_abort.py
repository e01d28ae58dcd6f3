"""A command whose standard streams are closed does its work, and never aborts."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import PYTHON, read_lines, simulated, write_requests


def in_shell(command: tuple[str, ...], closed: str) -> subprocess.CompletedProcess[str]:
    words = shlex.join([PYTHON, "-m", "batchline", *command])
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BATCHLINE_")}
    return subprocess.run(
        ["sh", "-c", f"{words} {closed}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_list_ends_well(closed: str, database_url: str, tmp_path: Path) -> None:
    done = in_shell(("list", "--database", database_url, "--data-dir", str(tmp_path / "data")), closed)
    assert done.returncode == 0, done.stderr
    assert done.stderr in ("", "no batches; `batchline run` and `batchline submit` create them\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_run_writes_its_output(closed: str, database_url: str, tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    with simulated() as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        done = in_shell(("run", str(inputs), "--upstream", upstream.url, *location), closed)
    assert done.returncode == 0, done.stderr
    assert len(read_lines(tmp_path / "in.output.jsonl")) == 5


def test_an_error_keeps_its_exit_code(database_url: str, tmp_path: Path) -> None:
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    assert in_shell(("status", "no-batch", *location), "<&- >&- 2>&-").returncode == 2
