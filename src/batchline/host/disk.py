"""A disk that has no room left, as the operating system reports it."""

import errno
import shutil
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
# As those quote it who give no errno: Rust's standard library, and PostgreSQL in messages and its log.
_FULL_TEXTS = (
    *(f"os error {code}" for code in _FULL),
    "No space left on device",
    "Disk quota exceeded",
    "disk full",
)
# PostgreSQL writes its log ahead in files of 16 MiB, and stops where there is no room for the next one.
_LOW_BYTES = 32 * 1024 * 1024


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def says_full(text: str) -> bool:
    return any(quoted in text for quoted in _FULL_TEXTS)


def has_no_room(folder: Path) -> bool:
    """Whether the disk under `folder` is full, or so nearly that a database on it cannot work."""
    try:
        return shutil.disk_usage(folder).free < _LOW_BYTES
    except OSError:
        return False


def full_message(folder: Path | str) -> str:
    """What people are told, wherever the disk is found to be full."""
    return (
        f"disk full: there is no room left in {folder}. Nothing that was stored is lost: make room on that "
        "disk, and give the same command again."
    )
