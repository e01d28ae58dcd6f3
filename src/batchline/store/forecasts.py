"""What forecasts are made of: lines that stand for a file, and what earlier requests have used."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

# Lines that stand for a file.
_LINES = 1_000
MAX_SAMPLE = 10_000


class ProfileLine(msgspec.Struct, frozen=True):
    """A line, and how many lines of its file it stands for."""

    model: str
    url: str
    weight: float
    body: bytes


class LearnedUsage(msgspec.Struct, frozen=True):
    """What requests of one model have used."""

    model: str
    requests: int
    bytes: int
    input_tokens: int
    output_tokens: int


class SampledLine(msgspec.Struct, frozen=True):
    """What a finished line has used, and how many seconds after the sample was drawn it was done."""

    model: str
    input_tokens: int
    output_tokens: int
    seconds: float | None


async def profile(session: Session, file_id: UUID) -> list[ProfileLine]:
    rows = await session.raw_rows(statement("file_profile"), {"file": file_id, "lines": _LINES})
    return [ProfileLine(model.decode(), url.decode(), weight, body) for model, url, weight, body in rows]


async def learned(session: Session, tenant: str, models: Sequence[str]) -> dict[str, LearnedUsage]:
    """By model; a model without earlier requests is missing."""
    rows = await session.rows(statement("learned_usage"), {"tenant": tenant, "models": list(models)})
    return {row[0]: LearnedUsage(*row) for row in rows}


async def sampled(session: Session, batch_id: UUID) -> list[SampledLine]:
    rows = await session.rows(statement("sampled_usage"), {"batch": batch_id, "limit": MAX_SAMPLE})
    return [SampledLine(*row) for row in rows]
