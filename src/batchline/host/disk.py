"""Recognizes a full disk."""

import errno
import shutil
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Messages without an errno: of Rust's standard library, and of PostgreSQL.
_FULL_TEXTS = (
    *(f"os error {code}" for code in _FULL),
    "No space left on device",
    "Disk quota exceeded",
    "disk full",
)
# PostgreSQL's write-ahead log has files of 16 MiB, and it stops if there is no space for the next one.
_LOW_BYTES = 32 * 1024 * 1024


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def says_full(text: str) -> bool:
    return any(quoted in text for quoted in _FULL_TEXTS)


def has_no_room(folder: Path) -> bool:
    """Whether the disk of `folder` is too full for a database."""
    try:
        return shutil.disk_usage(folder).free < _LOW_BYTES
    except OSError:
        return False


def full_message(folder: Path | str) -> str:
    """The message for a full disk."""
    return (
        f"disk full: there is no space left in {folder}. No stored data is lost. Free some space on that "
        "disk and run the same command again."
    )
