"""The processes of the example: the site and the workers."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def migrate() -> None:
    """Create the tables in a database of our own, as `BATCHLINE_DATABASE_URL` names it."""
    subprocess.run(
        [sys.executable, "-m", "batchline", "migrate", "up"], check=True, stdout=subprocess.DEVNULL
    )


@dataclass(frozen=True, slots=True)
class RunningSite:
    hosts: list[str]

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.hosts[0]}/stats", timeout=30) as response:
            found: dict[str, Any] = json.load(response)
            return found


@contextmanager
def running_site(pages: int, hosts: int, latency: float) -> Iterator[RunningSite]:
    command = [sys.executable, "-m", "examples.bulk_import.site", str(pages), str(hosts), str(latency)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        yield RunningSite(json.loads(process.stdout.readline()))
    finally:
        process.terminate()
        process.communicate()


@dataclass(slots=True)
class Workers:
    """As a supervisor has them: one that dies is replaced."""

    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self) -> None:
        command = [sys.executable, "-m", "batchline", "worker", "examples.bulk_import.tasks:app", "--quiet"]
        # A short lease: what a dead worker held is free again after five seconds.
        self.processes.append(subprocess.Popen([*command, "--lease", "5s"], cwd=ROOT))

    def kill_one(self) -> None:
        """With SIGKILL, which no process can handle; and start another one."""
        dead = self.processes.pop(0)
        dead.kill()
        dead.wait()
        self.start()

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


@contextmanager
def running_workers(count: int) -> Iterator[Workers]:
    workers = Workers()
    try:
        for _ in range(count):
            workers.start()
        yield workers
    finally:
        workers.stop()
