"""A batch over a few lines, created with its file and its lines in one round trip.

The statements are those that create files and batches otherwise. Only the lines come by INSERT: a COPY must
know the number of the file before, and ends a round trip of its own.
"""

from collections.abc import Sequence

from psycopg.errors import UniqueViolation

from batchline.store import batches, files
from batchline.store.arrays import TextArray
from batchline.store.batches import AlreadyExists, FileNotFound, NewBatch
from batchline.store.files import NewFile
from batchline.store.session import Session
from batchline.store.statements import statement


async def create(
    session: Session, file: NewFile, new: NewBatch, custom_ids: Sequence[bytes], bodies: Sequence[bytes]
) -> None:
    """Create the file, with its lines in the first lane, and the batch: all or nothing."""
    lines = {"file": file.id, "custom_ids": TextArray(custom_ids), "bodies": TextArray(bodies)}
    try:
        *_, created = await session.together(
            (statement("add_file"), files.added(file, no=None)),
            (statement("add_lines"), lines),
            (statement("create_batch"), batches.created(new)),
        )
    except UniqueViolation as error:
        raise AlreadyExists(f"there is a batch with resume key {new.resume_key}") from error
    if not created:
        raise FileNotFound(f"no input file {file.id}")
