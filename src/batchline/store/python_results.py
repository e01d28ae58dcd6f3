"""Results of one lane of a batch, in the order of its items, also while the batch runs.

Each page is read in a short transaction. A page ends before the first item that has no result yet.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from batchline.store.session import Session
from batchline.store.statements import statement

_LIMIT = 5_000
_ROOM = 2 * 2**20


class ResultLane(msgspec.Struct, frozen=True):
    """Where the results of one stage are."""

    id: int
    file_no: int
    lane_no: int
    total: int
    # No result comes any more.
    frozen: bool
    # The code of items that never ran; None: there are none.
    ending: str | None
    # The results are deleted, or are about to be.
    purged: bool


class PythonResult(msgspec.Struct, frozen=True):
    """`output` is None if the item never ran; then `custom_id` is known."""

    ordinal: int
    line_no: int
    attempt: int | None
    output: bytes | None
    custom_id: bytes = b""


async def lane(session: Session, batch_id: UUID, url: str) -> ResultLane | None:
    rows = await session.rows(statement("python_lane"), {"batch": batch_id, "url": url})
    return ResultLane(*rows[0]) if rows else None


async def page(session: Session, of: ResultLane, after: int, first: int) -> Sequence[PythonResult]:
    """Results after line number `after`, as far as their ordinals go on from `first` without a gap."""
    params = {"lane": of.id, "after": after, "limit": _LIMIT, "room": _ROOM}
    rows = await session.raw_rows(statement("page_python_results"), params)
    found = [PythonResult(*row) for row in rows]
    if not found or found[-1].ordinal == first + len(found) - 1:
        return found
    return [result for nth, result in enumerate(found, first) if result.ordinal == nth]


async def page_with_unrun(session: Session, of: ResultLane, first: int) -> Sequence[PythonResult]:
    """All items from ordinal `first` on."""
    params = {
        "lane": of.id,
        "file_no": of.file_no,
        "lane_no": of.lane_no,
        "first": first,
        "limit": _LIMIT,
    }
    return [PythonResult(*row) for row in await session.raw_rows(statement("page_unrun_items"), params)]


class FirstResult(msgspec.Struct, frozen=True):
    """How the first item of a batch has ended. `output` is None if it never ran; `ending` says why."""

    batch_id: UUID
    # The results, or the whole batch, are deleted.
    deleted: bool
    ending: str | None
    attempt: int | None
    output: bytes | None


async def first_results(session: Session, batch_ids: Sequence[UUID]) -> list[FirstResult]:
    """Of those batches whose first item has ended; if results are large, of some of them only."""
    params = {"batches": list(batch_ids), "room": _ROOM}
    rows = await session.raw_rows(statement("first_results"), params)
    return [
        FirstResult(batch_id, deleted, None if ending is None else ending.decode(), attempt, output)
        for batch_id, deleted, ending, attempt, output in rows
    ]


class TooMuch(Exception):
    """The results are larger than the caller can take."""


async def collected(
    session: Session, batch_id: UUID, url: str, numbers: Sequence[int] | None, *, max_bytes: int
) -> list[bytes]:
    """Output lines of completed items of one stage, in their order: those with these line numbers, or all.
    Raises TooMuch."""
    outputs: list[bytes] = []
    after, size = 0, 0
    while True:
        params = {
            "batch": batch_id,
            "url": url,
            "numbers": None if numbers is None else list(numbers),
            "after": after,
            "limit": _LIMIT,
            "room": _ROOM,
        }
        rows = await session.raw_rows(statement("collected_results"), params)
        if not rows:
            return outputs
        outputs += [output for _, output in rows]
        after, size = rows[-1][0], size + sum(len(output) for _, output in rows)
        if size > max_bytes:
            raise TooMuch(f"the results have more than {max_bytes} bytes")
