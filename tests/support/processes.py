"""Real processes for tests: the simulated upstream and the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT
from tests.support.waiting import LIMIT, wait_for

PYTHON = sys.executable


@dataclass(frozen=True, slots=True)
class Upstream:
    """A simulated upstream in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/stats", timeout=LIMIT) as response:
            found: dict[str, Any] = json.load(response)
            return found


@contextmanager
def simulated(*options: str) -> Iterator[Upstream]:
    with _serving(start("simulate", "--port", "0", "--json", *options), lines=3) as upstream:
        yield upstream


@contextmanager
def simulated_cluster(*options: str) -> Iterator[Upstream]:
    """The Kubernetes API of examples/kubevirt."""
    command = [PYTHON, "-m", "examples.kubevirt.simulator", "--port", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    with _serving(process, lines=1) as upstream:
        yield upstream


@contextmanager
def _serving(process: subprocess.Popen[str], lines: int) -> Iterator[Upstream]:
    try:
        assert process.stdout is not None
        ready = "".join(process.stdout.readline() for _ in range(lines))
        yield Upstream(json.loads(ready)["url"], process)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PYTHON, "-m", "batchline", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(environment),
    )


def batchline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "batchline", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=_environment(environment),
    )


def _environment(more: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("BATCHLINE_")}
    return {**kept, **more}


def submit(inputs: Path, url: str, *location: str) -> str:
    done = batchline("submit", str(inputs), "--upstream", url, "--json", *location)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def status(batch: str, *location: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(batchline("status", batch, "--json", *location).stdout)
    return found


@contextmanager
def working(
    database: str, data_dir: Path, *options: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A worker that is killed at the latest when the test is over."""
    process = start("worker", "--database", database, "--data-dir", str(data_dir), *options, **environment)
    try:
        yield process
    finally:
        kill(process)


@contextmanager
def logged(log: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process whose stderr can be read while it runs; killed at the latest when the test is over."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            [PYTHON, "-m", "batchline", *arguments],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            env=_environment(environment),
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[str], how: signal.Signals = signal.SIGKILL) -> tuple[str, str]:
    if process.poll() is None:
        process.send_signal(how)
    return process.communicate(timeout=LIMIT)


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ask it to end, once it can hear: a process that is still starting would be killed by the question."""
    heard = 1 << (signal.SIGTERM - 1)
    status = Path("/proc", str(process.pid), "status")

    def hears() -> bool:
        if process.poll() is not None:
            return True
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) & heard)

    wait_for("a process that hears SIGTERM", hears)
    return kill(process, signal.SIGTERM)


def wait_for_executions(upstream: Upstream, count: int, limit: float = LIMIT) -> None:
    wait_for(f"{count} executions", lambda: upstream.stats()["executed"] >= count, limit)


def write_requests(path: Path, count: int, models: tuple[str, ...] = ("sim-small",)) -> Path:
    with path.open("w") as stream:
        for number in range(count):
            body = {
                "model": models[number % len(models)],
                "messages": [{"role": "user", "content": f"Say {number}."}],
            }
            line = {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


def write_responses(path: Path, count: int) -> Path:
    """Lines for /v1/responses."""
    with path.open("w") as stream:
        for number in range(count):
            body = {"model": "sim-small", "input": f"Say {number}."}
            line = {"custom_id": f"q-{number}", "method": "POST", "url": "/v1/responses", "body": body}
            stream.write(json.dumps(line) + "\n")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_ids(path: Path) -> str:
    """A file of output lines without what differs between two batches over the same input."""
    return re.sub(r"batch_req_[0-9a-f]{32}", "batch_req", path.read_text())
