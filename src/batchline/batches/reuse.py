"""Edit and rerun: a new batch takes the answers that earlier batches have for the same lines.

First `plan` looks for earlier batches of the same tenant and upstream, and `prepare` hashes the lines of all
files that take part, each in a separate transaction, once in its life. Then the transaction that creates the
batch copies the answers (`BatchCreation.reuse`). A crash at any time leaves at most hashes behind, which the
next try uses.
"""

from uuid import UUID

import msgspec

from batchline.model import RunSettings
from batchline.store import reuse
from batchline.store.reuse import ReusableFile
from batchline.store.session import Session


class ReusePlan(msgspec.Struct, frozen=True):
    """The files that take part in a reuse; none: there is nothing to reuse."""

    files: tuple[ReusableFile, ...] = ()

    @property
    def seconds(self) -> float:
        """A generous limit for copying the answers."""
        return 2 * sum(file.seconds for file in self.files)


NOTHING = ReusePlan()


async def plan(session: Session, tenant: str, file_id: UUID, settings: RunSettings) -> ReusePlan:
    """What a batch over the file can reuse. A batch of an asynchronous provider submits every line."""
    if settings.provider is not None:
        return NOTHING
    return ReusePlan(tuple(await reuse.reusable_files(session, tenant, file_id, settings)))


async def prepare(session: Session, planned: ReusePlan, max_lines: int | None = None) -> None:
    """Hash the files that are not hashed yet: the batch's own, and those of earlier batches, newest first,
    until `max_lines` of them are hashed. Answers to the rest are not found; a later call hashes more."""
    hashed = 0
    for nth, file in enumerate(planned.files):
        if file.hashed:
            continue
        if nth > 0 and max_lines is not None and hashed >= max_lines:
            return
        await reuse.hash_lines(session, file)
        hashed += file.line_count if nth > 0 else 0
