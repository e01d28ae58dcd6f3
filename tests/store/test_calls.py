"""Lines and results of calls: each look finds those that have ended, for all that wait."""

import pytest

from batchline.store import calls, python_results, spans
from batchline.store.python_results import ResultLane
from batchline.store.session import Session
from tests.support.builders import a_batch, a_worker, completed, failed, take

URL = "/v1/chat/completions"


async def lane_of_lines(db: Session, lines: int) -> ResultLane:
    batch = await a_batch(db, lines)
    lane = await python_results.lane(db, batch.id, URL)
    assert lane is not None
    return lane


async def test_lines_are_read_from_an_ordinal_on(db: Session) -> None:
    lane = await lane_of_lines(db, 5)
    found = await calls.lines(db, lane, 2)
    assert [ordinal for ordinal, _ in found] == [2, 3, 4]
    assert all(custom_id for _, custom_id in found)
    assert await calls.lines(db, lane, 5) == []


async def test_only_lines_that_have_ended_are_found(db: Session) -> None:
    lane, worker = await lane_of_lines(db, 6), a_worker()
    items = {item.line_no: item for item in await take(db, worker)}
    await spans.settle(db, worker.id, [completed(items[2]), failed(items[5]), completed(items[6])])
    found = await calls.results(db, lane, [5, 1, 2, 3])
    assert [line_no for line_no, _ in found] == [2, 5]
    assert await calls.results(db, lane, []) == []


async def test_large_results_are_found_in_several_looks(db: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    lane, worker = await lane_of_lines(db, 3), a_worker()
    await spans.settle(db, worker.id, [completed(item) for item in await take(db, worker)])
    monkeypatch.setattr(calls, "ROOM", 1)
    assert [line_no for line_no, _ in await calls.results(db, lane, [1, 2, 3])] == [1]
