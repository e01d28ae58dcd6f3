"""A disk that has no room left, as the operating system reports it."""

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT)
# As libraries quote it that give no errno: Rust's standard library, and PostgreSQL's log.
_FULL_TEXTS = (*(f"os error {code}" for code in _FULL), "No space left on device", "Disk quota exceeded")


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def says_full(text: str) -> bool:
    return any(quoted in text for quoted in _FULL_TEXTS)
