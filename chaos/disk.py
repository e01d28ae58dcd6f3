"""A separate disk for the database that can be full: a tmpfs, if this process may mount one.

To fill the disk, its size is reduced to the space in use. That takes no memory and can be undone at once.
"""

import os
import shutil
import subprocess
from pathlib import Path

_SIZE = "4g"
# Bytes that stay free: a disk is rarely full to the last byte.
_LEFT = 256 * 1024


class Disk:
    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder = folder
        self._mounted = mounted

    @classmethod
    def at(cls, folder: Path) -> "Disk":
        """Mount a disk. If that is not allowed, use an ordinary folder, which cannot be filled; where no
        fault may be left out, as in CI, raise OSError."""
        folder.mkdir()
        mounted = _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=755", "batchline-chaos", str(folder))
        if not mounted and os.environ.get("BATCHLINE_TEST_REQUIRE_EXTERNAL"):
            raise OSError(f"cannot mount a disk at {folder}, so the fault of a full disk would be left out")
        return cls(folder, mounted=mounted)

    def fill(self) -> bool:
        """Fill the disk. Return False if this disk cannot be filled."""
        if not self._mounted:
            return False
        state = os.statvfs(self.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        return self._resize(str(used + _LEFT))

    def free(self) -> None:
        if self._mounted:
            self._resize(_SIZE)

    def keep_log(self) -> None:
        """Save PostgreSQL's log before the disk is unmounted."""
        if (log := self.folder / "postgres.log").exists():
            shutil.copyfile(log, self.folder.with_name("postgres.log"))

    def unmount(self) -> None:
        if self._mounted:
            _run("umount", "--lazy", str(self.folder))

    def _resize(self, size: str) -> bool:
        return _run("mount", "-o", f"remount,size={size}", str(self.folder))


def _run(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
