"""`batchline serve` as a real process, and the official client for it."""

import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openai
import psutil
from openai.types import Batch

from tests.support.openai_client import openai_client
from tests.support.processes import start
from tests.support.waiting import LIMIT, wait_for


@dataclass
class Served:
    """A server in a process of its own, and what it has said so far."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    complained: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        found = re.search(r"listening on (http://\S+)/v1", "".join(self.said))
        return found[1] if found else ""

    @property
    def key(self) -> str:
        found = re.search(r"shown this once: (bl-\S+)", "".join(self.said))
        return found[1] if found else ""

    def client(self, key: str | None = None) -> openai.OpenAI:
        return openai_client(key or self.key, self.url)

    def worker(self) -> psutil.Process | None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next((child for child in children if is_worker(child)), None)

    def wait_for_worker(self, other_than: int | None = None) -> psutil.Process:
        def found() -> psutil.Process | None:
            worker = self.worker()
            return worker if worker is not None and worker.pid != other_than else None

        process = wait_for("a worker", found)
        assert isinstance(process, psutil.Process)
        return process


@contextmanager
def served(database: str, folder: Path, *options: str, **environment: str) -> Iterator[Served]:
    location = ("--database", database, "--data-dir", str(folder / "data"))
    process = start("-v", "serve", "--port", "0", *location, *options, **environment)
    server = Served(process)
    readers = [
        threading.Thread(target=lambda: server.said.extend(process.stdout or ())),
        threading.Thread(target=lambda: server.complained.extend(process.stderr or ())),
    ]
    for reader in readers:
        reader.start()
    try:
        wait_for("the server to listen", lambda: server.url or process.poll() is not None)
        assert server.url, "".join(server.complained)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            for reader, pipe in zip(readers, (process.stdout, process.stderr), strict=True):
                reader.join(60)
                assert pipe is not None
                pipe.close()


def submit(client: openai.OpenAI, path: Path) -> Batch:
    file = client.files.create(file=path, purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    def found() -> Batch | None:
        now = client.batches.retrieve(batch.id)
        return now if now.status in ("completed", "failed", "expired", "cancelled") else None

    over = wait_for(f"the end of {batch.id}", found)
    assert isinstance(over, Batch)
    return over


def is_worker(process: psutil.Process) -> bool:
    try:
        return "worker" in process.cmdline()
    except psutil.NoSuchProcess:
        # Gone between two looks, or dead and not yet asked for its exit code.
        return False
