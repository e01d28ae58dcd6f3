"""Results of items, in the order of submission, while the batch runs or afterwards.

Results are read by pages, so memory stays flat, and there is no query per item.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Generic, cast
from uuid import UUID

import msgspec

from batchline.app.loops import LoopResources
from batchline.operations.codec import ItemCodec, ItemT, ResultT, TypeMismatch
from batchline.operations.errors import ItemFailed
from batchline.store import python_results
from batchline.store.outputs import NEVER_RUN
from batchline.store.python_results import PythonResult, ResultLane

# Seconds between two looks for the next result, unless a notification comes earlier.
_MIN_PAUSE, _MAX_PAUSE, _GROWTH = 0.005, 0.25, 1.5


class ItemError(msgspec.Struct, frozen=True):
    """Why an item has failed. `code` is for programs: the class of the exception, or one of Batchline's."""

    code: str
    message: str


class ItemResult(msgspec.Struct, Generic[ResultT], frozen=True):
    """How an item has ended. `value` is None if it has failed."""

    index: int
    key: str
    ok: bool
    value: ResultT
    error: ItemError | None
    # 0: it never ran.
    attempts: int

    def get(self) -> ResultT:
        """The value. Raises ItemFailed."""
        if self.error is not None:
            raise self.failure()
        return self.value

    def failure(self) -> ItemFailed:
        """The exception for an item that has failed."""
        assert self.error is not None, "the item is completed"
        return ItemFailed(self.error.code, self.error.message, self.index, self.key)


class _StoredBody(msgspec.Struct, gc=False):
    body: msgspec.Raw


class _StoredLine(msgspec.Struct, gc=False):
    custom_id: str
    response: _StoredBody | None = None
    error: ItemError | None = None


_decode_line = msgspec.json.Decoder(_StoredLine).decode


class ResultReader(Generic[ItemT, ResultT]):
    """Reads the results of one stage of a batch once, from the first one on."""

    def __init__(self, resources: LoopResources, batch_id: UUID, url: str) -> None:
        self._resources = resources
        self._batch_id = batch_id
        self._url = url
        self._next = 0
        # The line number of the last result.
        self._after = 0

    async def pages(
        self, codec: ItemCodec[ItemT, ResultT]
    ) -> AsyncGenerator[Sequence[ItemResult[ResultT]], None]:
        """Results in blocks, until the last item has ended. Raises LookupError."""
        lane, pause = await self._lane(), _MIN_PAUSE
        with self._resources.notices().expected(self._batch_id) as notice:
            while True:
                notice.clear()
                found = await self._page(lane)
                if found:
                    self._next, self._after = found[-1].ordinal + 1, found[-1].line_no
                    pause = _MIN_PAUSE
                    yield [result_of(each, codec, lane.ending) for each in found]
                elif lane.frozen:
                    return
                else:
                    lane = await self._lane()
                    if not lane.frozen:
                        await notice.wait(pause)
                        pause = min(pause * _GROWTH, _MAX_PAUSE)

    async def _lane(self) -> ResultLane:
        async with self._resources.sessions.one() as session:
            lane = await python_results.lane(session, self._batch_id, self._url)
        if lane is None:
            raise LookupError("the batch was deleted, or has no such stage")
        if lane.purged:
            raise LookupError("the results of the batch are deleted; its output file may still be there")
        return lane

    async def _page(self, lane: ResultLane) -> Sequence[PythonResult]:
        async with self._resources.sessions.one() as session:
            if lane.ending is not None:
                return await python_results.page_with_unrun(session, lane, self._next)
            return await python_results.page(session, lane, self._after, self._next)


def result_of(
    stored: PythonResult, codec: ItemCodec[ItemT, ResultT], ending: str | None
) -> ItemResult[ResultT]:
    """`ending`: the code of items that never ran."""
    attempts = stored.attempt or 0
    if stored.output is None:
        code = ending or "batch_cancelled"
        return _failed(stored.ordinal, stored.custom_id.decode(), ItemError(code, NEVER_RUN[code]), 0)
    line = _decode_line(stored.output)
    if line.response is None:
        error = line.error or ItemError("unknown", "")
        return _failed(stored.ordinal, line.custom_id, error, attempts)
    try:
        value = codec.decode_result(bytes(line.response.body))
    except TypeMismatch as error:
        # The function had another type when the item ran.
        return _failed(stored.ordinal, line.custom_id, ItemError("invalid_result", str(error)), attempts)
    return ItemResult(stored.ordinal, line.custom_id, True, value, None, attempts)


def _failed(index: int, key: str, error: ItemError, attempts: int) -> ItemResult[ResultT]:
    return ItemResult(index, key, False, cast(ResultT, None), error, attempts)
