"""Private folders, because prompts and answers are stored in plain text.

A folder that is open to other users is made private if it contains only Batchline's files. If it contains
other files, it is refused: making /tmp or a project folder private would do harm.
"""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

_DATA = {"objects", "written", "postgres", "postgres.log", "start.lock", "users.lock", "spool", "lost+found"}
_UNFINISHED_CLUSTER = "postgres.new-"
_OBJECTS = {"inputs", "outputs", "parts", "lost+found"}


class FolderNotPrivate(Exception):
    """Other users could read files in the folder. The message says why, and what to do."""


def data_folder(folder: Path) -> None:
    """Create the data folder, or make it private."""
    # As root, the account of the embedded server may traverse the folder, but not list it
    # (embedded/account.py).
    passing = stat.S_IXGRP if sys.platform != "win32" and os.geteuid() == 0 else 0
    _make_private(folder, lambda name: name in _DATA or name.startswith(_UNFINISHED_CLUSTER), passing)


def objects_folder(folder: Path) -> None:
    """Create a folder for objects, or make it private."""
    _make_private(folder, lambda name: name in _OBJECTS)


def _make_private(folder: Path, is_ours: Callable[[str], bool], allowed: int = 0) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform == "win32":
        return
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise FolderNotPrivate(
            f"{folder} belongs to another user (uid {status.st_uid}). Choose another folder, run as that "
            "user, or give the folder to yourself with chown."
        )
    mode = stat.S_IMODE(status.st_mode)
    if not _excess(mode, allowed):
        return
    if not all(is_ours(entry.name) for entry in folder.iterdir()):
        raise FolderNotPrivate(
            f"{folder} is open to other users (mode {mode:04o}) and contains other files than Batchline's. "
            "Make it private with chmod 700, or choose another folder."
        )
    folder.chmod(0o700)
    if _excess(folder.stat().st_mode, allowed):
        raise FolderNotPrivate(
            f"{folder} is open to other users (mode {mode:04o}), and its file system does not allow a "
            "change. Choose another folder."
        )


def _excess(mode: int, allowed: int) -> int:
    return mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed
