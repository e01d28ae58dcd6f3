"""Batches for those who order them: find the one that a command has made before, or make it."""

import hashlib
import re
from uuid import UUID

from batchline.ids import new_id
from batchline.model import Batch, RunSettings
from batchline.store import batches
from batchline.store.batches import AlreadyThere, NewBatch
from batchline.store.session import Session

_WINDOW = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class InvalidWindow(ValueError):
    """A completion window that cannot be read."""


def window_seconds(window: str) -> float:
    """`24h`, `90m`, `30s`, `7d`."""
    match = _WINDOW.fullmatch(window.strip())
    if match is None or float(match[1]) <= 0:
        raise InvalidWindow(f"completion window {window!r}: give a number and a unit, such as 24h, 90m or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def resume_key(digest: bytes, upstream: str) -> str:
    """The same input sent to the same upstream is the same run, whatever else was asked for."""
    place = upstream.removesuffix("/").removesuffix("/v1")
    return hashlib.sha256(digest + place.encode()).hexdigest()


async def create(
    session: Session,
    *,
    tenant: str,
    file_id: UUID,
    window: str,
    settings: RunSettings,
    endpoint: str | None = None,
    metadata: dict[str, str] | None = None,
    resume_key: str | None = None,
) -> Batch:
    """A new batch; or, where another process was quicker with the same `resume_key`, its batch."""
    new = NewBatch(
        id=new_id(),
        tenant=tenant,
        file_id=file_id,
        window=window,
        window_seconds=window_seconds(window),
        settings=settings,
        endpoint=endpoint,
        metadata=metadata,
        resume_key=resume_key,
    )
    try:
        return await batches.create(session, new)
    except AlreadyThere:
        found = await batches.find(session, tenant, new.resume_key or "")
        if found is None:
            raise
        return found
