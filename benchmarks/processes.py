"""Processes that the benchmarks start: Batchline's own commands, and contestants with a separate process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

_ROOT = Path(__file__).parent.parent


def batchline(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "batchline", *arguments]


def module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def output_of(name: str, *arguments: str) -> str:
    """The output of one of our modules."""
    return run(module(name, *arguments))


def run(command: list[str]) -> str:
    """Run a command to its end, and return its output. If it fails, the error contains all its output."""
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def running(command: list[str], **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process for as long as the context lasts, with more variables of the environment."""
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def simulator(latency: int = 0, *, record: bool = False, options: tuple[str, ...] = ()) -> Iterator[str]:
    """Run `batchline simulate` with a latency in milliseconds and more options, and return its URL."""
    recording = ("--record",) if record else ()
    command = batchline("simulate", "--port", "0", "--latency", str(latency), "--json", *recording, *options)
    with running(command) as process:
        yield msgspec.json.decode(_document(process))["url"]


@contextmanager
def llama(*options: str) -> Iterator[str]:
    """Run a real llama.cpp server with a small generated model, and return its URL."""
    with running(module("tools.llama_server", *options)) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@contextmanager
def worker(database: str, data_dir: Path) -> Iterator[subprocess.Popen[str]]:
    with running(batchline("worker", "--database", database, "--data-dir", str(data_dir))) as process:
        yield process


@contextmanager
def app_worker(database: str, data_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of benchmarks/python_app.py."""
    command = batchline("worker", "benchmarks.python_app:app", "--quiet", *options)
    where = {"BATCHLINE_DATABASE_URL": database, "BATCHLINE_DATA_DIR": str(data_dir)}
    with running(command, **where) as process:
        yield process


def _document(process: subprocess.Popen[str]) -> str:
    """Read a JSON document, whose last line is a closing brace."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip() == "}":
            break
    return "".join(lines)
