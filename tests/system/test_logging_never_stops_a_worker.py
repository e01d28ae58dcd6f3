"""Whatever becomes of standard error, a worker goes on: a log that cannot be written is no reason to stop."""

import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import structlog

from batchline.cli.logs import set_up_logging
from tests.support.processes import PYTHON, batchline, simulated, write_requests
from tests.support.waiting import LIMIT, wait_for

LINES = 40


class Broken(io.StringIO):
    """A stream that fails whenever something is written to it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(lambda: None, id="none"),
        pytest.param(closed, id="closed"),
        pytest.param(lambda: Broken(BrokenPipeError(errno.EPIPE, "broken pipe")), id="broken pipe"),
        pytest.param(lambda: Broken(OSError(errno.ENOSPC, "no space left")), id="full disk"),
    ],
)
@pytest.mark.parametrize("since", ["before", "after"])
def test_a_log_line_that_cannot_be_written_is_dropped_and_later_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, stream: Callable[[], io.StringIO | None], since: str
) -> None:
    """The stream fails before the log is set up, or only afterwards."""
    log = structlog.get_logger("test")
    if since == "before":
        monkeypatch.setattr(sys, "stderr", stream())
    set_up_logging()
    monkeypatch.setattr(sys, "stderr", stream())
    log.warning("nobody reads this")
    try:
        raise ValueError("surprise")
    except ValueError:
        log.exception("nor this")

    monkeypatch.setattr(sys, "stderr", repaired := io.StringIO())
    log.warning("somebody reads this")
    assert repaired.getvalue().count("\n") == 1
    assert "somebody reads this" in repaired.getvalue()


def test_a_command_in_this_process_does_not_leave_its_stream_to_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when tests run commands in one process: the stream is closed after the command."""
    with io.StringIO() as commands, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", commands)
        set_up_logging()
    monkeypatch.setattr(sys, "stderr", later := io.StringIO())
    structlog.get_logger("test").warning("after the command")
    assert "after the command" in later.getvalue()


def an_unread_pipe() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("stderr", [an_unread_pipe, lambda: os.open("/dev/full", os.O_WRONLY)])
def test_a_worker_whose_log_cannot_be_written_finishes_its_batch(
    database_url: str, tmp_path: Path, stderr: Callable[[], int]
) -> None:
    """It has something to say at its start, and when the database cuts its connections."""
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    inputs = write_requests(tmp_path / "in.jsonl", LINES)
    with simulated("--latency", "20") as upstream:
        assert batchline("submit", str(inputs), "--upstream", upstream.url, *location).returncode == 0
        command = [PYTHON, "-m", "batchline", "-v", "worker", "-c", "2", *location]
        log = stderr()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        os.close(log)
        try:
            cut_connections(database_url)
            wait_for("the end", lambda: ended(database_url) or process.poll() is not None)
            assert process.poll() is None, f"the worker ended with {process.returncode}"
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0
    assert said.splitlines()[-1].startswith(f"worked on {LINES} items: ")


def cut_connections(database: str) -> None:
    """So that a worker that is at work has warnings to log, in several of its services."""
    cut = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name IN ('batchline listener', 'batchline settle')
    """
    with psycopg.connect(database, autocommit=True) as connection:
        wait_for("results", lambda: connection.execute("SELECT FROM batchline.results LIMIT 1").fetchall())
        wait_for("a connection", lambda: connection.execute(cut).fetchall())


def ended(database: str) -> bool:
    with psycopg.connect(database) as connection:
        return bool(
            connection.execute("SELECT FROM batchline.batches WHERE completed_at IS NOT NULL").fetchall()
        )
