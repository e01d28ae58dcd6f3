"""Cursors of lists: positions as text that clients pass back unchanged. What they hold is checked, not
trusted."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from batchline.api.errors import ApiError

T = TypeVar("T")
_MAX_LENGTH = 500


def encode(value: Any) -> str:
    return urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def decode(text: str, type: type[T]) -> T:
    """Raises a 400."""
    try:
        if len(text) > _MAX_LENGTH:
            raise ValueError
        return msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=type)
    except (ValueError, Error, msgspec.DecodeError):
        raise invalid() from None


def checked_time(text: str) -> str:
    """A position in time, as PostgreSQL writes it. Raises a 400."""
    if text in ("infinity", "-infinity"):
        return text
    try:
        # Python reads more forms than PostgreSQL does.
        return datetime.fromisoformat(text).isoformat()
    except ValueError:
        raise invalid() from None


def invalid() -> ApiError:
    message = "Invalid 'cursor': it is not one that this list has returned."
    return ApiError(400, message, code="invalid_value", param="cursor")
