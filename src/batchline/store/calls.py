"""Lines and results of a lane that a client feeds call by call, for all calls that wait at once."""

from collections.abc import Sequence

from batchline.store.python_results import ResultLane
from batchline.store.session import Session
from batchline.store.statements import statement

_LINES = 20_000
# Of one answer: the result that reaches it is the last one.
ROOM = 4 * 2**20


async def lines(session: Session, lane: ResultLane, first: int) -> list[tuple[int, bytes]]:
    """Ordinals and custom_ids of a block of lines, from ordinal `first` on."""
    params = {"file_no": lane.file_no, "lane_no": lane.lane_no, "first": first, "limit": _LINES}
    rows = await session.raw_rows(statement("call_lines"), params)
    return [(ordinal, custom_id) for ordinal, custom_id in rows]


async def results(session: Session, lane: ResultLane, line_nos: Sequence[int]) -> list[tuple[int, bytes]]:
    """Line numbers and output lines of those that have ended; if they are large, of the first ones only."""
    params = {"lane": lane.id, "line_nos": list(line_nos), "room": ROOM}
    rows = await session.raw_rows(statement("call_results"), params)
    return [(line_no, output) for line_no, output in rows]
