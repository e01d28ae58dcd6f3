"""A disk of its own for the database, so that it can be full: a tmpfs, where this process may mount one.

To fill it, its size is cut down to what is used. That takes no memory, and is undone at once.
"""

import os
import shutil
import subprocess
from pathlib import Path

_SIZE = "4g"
# Some pages are left: a disk is rarely full to the last byte.
_LEFT = 256 * 1024


class Disk:
    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder = folder
        self._mounted = mounted

    @classmethod
    def at(cls, folder: Path) -> "Disk":
        """Mount one; where that is not allowed, the folder is an ordinary one and cannot be filled."""
        folder.mkdir()
        mounted = _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE},mode=755", "batchline-chaos", str(folder))
        return cls(folder, mounted=mounted)

    def fill(self) -> bool:
        """From now on next to nothing can be written. False if this disk cannot be filled."""
        if not self._mounted:
            return False
        state = os.statvfs(self.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        return self._resize(str(used + _LEFT))

    def free(self) -> None:
        if self._mounted:
            self._resize(_SIZE)

    def keep_log(self) -> None:
        """What PostgreSQL said is needed when the disk is gone."""
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
