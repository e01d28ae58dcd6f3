"""A folder for the content of pipes and URLs, which is read more than once: to hash it, and to use it.

Each process has a folder of its own and holds a lock on it. What a killed process has left there is removed
by the next one.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_LOCK = "lock"


class Spool:
    """Keeps files until its context ends. The folder is created when it is first needed."""

    def __init__(self, parent: Callable[[], Path]) -> None:
        self._parent = parent
        self._folder: Path | None = None
        self._lock: int | None = None
        self._count = 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None and self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)

    def save(self, blocks: Iterable[bytes]) -> Path:
        """Write the blocks to a new file. The error of a full disk names the folder."""
        folder = self._folder or self._create()
        self._count += 1
        path = folder / str(self._count)
        with path.open("xb") as file:
            for block in blocks:
                try:
                    file.write(block)
                except OSError as error:
                    error.filename = str(folder)
                    raise
        return path

    def _create(self) -> Path:
        parent = self._parent()
        parent.mkdir(mode=0o700, exist_ok=True)
        _remove_leftovers(parent)
        self._folder = Path(tempfile.mkdtemp(dir=parent))
        self._lock = os.open(self._folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self._folder


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.iterdir():
        # A folder without a lock file belongs to a process that starts right now.
        with suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
