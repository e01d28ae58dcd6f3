"""A real llama.cpp server for tests, with a small generated model."""

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.repository import ROOT
from tests.support.waiting import LIMIT


@dataclass(frozen=True, slots=True)
class LlamaServer:
    url: str

    def count(self, name: str) -> int:
        """One of its metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=LIMIT) as page:
            lines = page.read().decode().splitlines()
        return int(next(line for line in lines if line.startswith(f"llamacpp:{name} ")).split()[1])


@contextmanager
def llama_server(log: Path, *options: str) -> Iterator[LlamaServer]:
    """Skips the test where llama.cpp is not installed."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install xllamacpp")
    command = [sys.executable, "-m", "tools.llama_server", *options]
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, log.read_text()
        yield LlamaServer(url)
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT)
