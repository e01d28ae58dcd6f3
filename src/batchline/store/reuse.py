"""Reuse of earlier answers: which files it needs, and the hashes of their lines."""

from uuid import UUID

import msgspec
from psycopg.types.json import Jsonb

from batchline.model import RunSettings
from batchline.store.session import Session
from batchline.store.statements import statement

# A guess at the slowest database: a million lines take some 3 s on a quiet machine.
_SECONDS_PER_LINE = 100e-6


class ReusableFile(msgspec.Struct, frozen=True):
    """A file that takes part in a reuse: the new batch's own, or that of an earlier one."""

    no: int
    line_count: int
    hashed: bool

    @property
    def seconds(self) -> float:
        """A generous limit for reading all its lines."""
        return self.line_count * _SECONDS_PER_LINE


async def reusable_files(
    session: Session, tenant: str, file_id: UUID, settings: RunSettings
) -> list[ReusableFile]:
    """The files to hash before a batch over `file_id` can reuse answers: its own, and those of earlier
    batches, newest first. None: there is nothing to reuse."""
    params = {"tenant": tenant, "file": file_id, "settings": Jsonb(msgspec.to_builtins(settings))}
    return [ReusableFile(*row) for row in await session.rows(statement("reusable_files"), params)]


async def hash_lines(session: Session, file: ReusableFile) -> None:
    """Hash the lines of a file. Repeating it changes nothing."""
    await session.rows(statement("hash_lines"), {"file_no": file.no}, extra_time=file.seconds)
