"""Creates, formats and parses ids.

Ids are UUIDs of version 7: they grow with time, so their index pages are written in order. Clients see them
with a prefix, as OpenAI's ids: `file-…`, `batch_…`.
"""

import os
import time
from uuid import UUID

FILE = "file-"
BATCH = "batch_"
EVENT = "evt_"
WEBHOOK = "webhook_"
UPLOAD = "upload_"
PART = "part_"
KEY = "key_"
RESPONSE = "resp_"
ACTION = "action_"


def new_id() -> UUID:
    """A UUID of version 7 (RFC 9562): 48 bits of milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & (1 << 48) - 1) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


def milliseconds_of(value: UUID) -> int | None:
    """When `new_id` has made it, in milliseconds of Unix time; None if that was another program."""
    return value.int >> 80 if value.version == 7 else None


def show(prefix: str, value: UUID) -> str:
    return prefix + value.hex


def read(prefix: str, text: str) -> UUID | None:
    """Parse an id with its prefix, or a bare UUID in any format. None if it is not valid."""
    try:
        return UUID(text.removeprefix(prefix))
    except ValueError:
        return None
