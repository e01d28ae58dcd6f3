"""Small disks that can be full: a tmpfs, mounted for one test.

with small_disk(tmp_path / "disk", megabytes=64) as disk:
    disk.fill()
    disk.grow(512)
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_BLOCK = bytes(64 * 1024)


@dataclass(frozen=True, slots=True)
class Disk:
    path: Path

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def fill(self) -> None:
        """Take all the room there is, also what is given back meanwhile."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(_BLOCK)
            except OSError:
                return

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def grow(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", self.path], check=True)


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Disk]:
    path.mkdir()
    options = f"size={megabytes}m,mode=0700"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        reason = f"a small disk cannot be mounted here: {mounted.stderr.strip()}"
        if os.environ.get("BATCHLINE_TEST_REQUIRE_EXTERNAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)
