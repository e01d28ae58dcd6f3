"""The poller of live updates: one for all, and only while somebody listens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest

from batchline.dashboard.live import MAX_PER_TENANT, Audience, Live, LiveStream, TooManyStreams
from batchline.dashboard.overview import OverviewReader
from batchline.dashboard.upstreams import UpstreamDirectory
from batchline.store.listing import BatchViewer
from batchline.store.pool import Sessions
from batchline.store.session import StoreUnavailable

ACME = Audience(BatchViewer("acme"), workers=False)


class _Pool:
    """Counts reads, and fails them all."""

    def __init__(self) -> None:
        self.reads = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Any]:
        self.reads += 1
        raise StoreUnavailable("not there")
        yield


def a_live(pool: _Pool, pause: float = 0.001) -> Live:
    unused: Any = None
    return Live(
        cast("Sessions", pool),
        cast("OverviewReader", unused),
        cast("UpstreamDirectory", unused),
        lambda action: {},
        pause=pause,
    )


def a_stream(user: str = "anna") -> LiveStream:
    return LiveStream(ACME, user, (), None)


async def some_reads(pool: _Pool, number: int = 3) -> None:
    enough = pool.reads + number
    while pool.reads < enough:  # noqa: ASYNC110 (a count has no event)
        await asyncio.sleep(0)


async def test_nothing_is_read_while_nobody_listens() -> None:
    pool = _Pool()
    live = a_live(pool)
    assert pool.reads == 0
    async with live.stream(a_stream()):
        await some_reads(pool)
    before = pool.reads
    for _ in range(100):
        await asyncio.sleep(0)
    assert pool.reads == before
    async with live.stream(a_stream()):
        await some_reads(pool)


async def test_many_streams_share_one_poller(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, running = _Pool(), 0
    live = a_live(pool)
    create = asyncio.create_task

    def counted(*args: Any, **more: Any) -> Any:
        nonlocal running
        running += 1
        return create(*args, **more)

    monkeypatch.setattr(asyncio, "create_task", counted)
    async with live.stream(a_stream("anna")), live.stream(a_stream("bert")), live.stream(a_stream("carl")):
        await some_reads(pool)
        assert running == 1


async def test_a_stream_that_is_not_read_keeps_the_newest_state_only() -> None:
    stream = a_stream()
    for number in range(1000):
        stream.tell("batch", {"id": "batch_1", "number": number})
        stream.tell("batch", {"id": "batch_1", f"other{number % 3}": number})
    stream.tell("overview", {"open": 1})
    events = stream.events(0)
    received = [await anext(events) for _ in range(3)]
    assert received[0].startswith(b"event: hello\nid: 0\n")
    assert b'"number":999,' in received[1]
    assert b'"other0":999' in received[1]
    assert received[2] == b'event: overview\nid: 2\ndata: {"open":1}\n\n'
    await events.aclose()  # type: ignore[attr-defined]


async def test_a_stream_of_a_stopped_server_ends() -> None:
    live = a_live(_Pool())
    live.stop()
    async with live.stream(a_stream()) as events:
        (hello,) = [event async for event in events]
        assert hello.startswith(b"event: hello")


async def test_streams_of_one_tenant_leave_room_for_others() -> None:
    live = a_live(_Pool())
    other = LiveStream(Audience(BatchViewer("other"), workers=False), "anna", (), None)
    async with AsyncExitStack() as stack:
        for number in range(MAX_PER_TENANT):
            await stack.enter_async_context(live.stream(a_stream(f"user {number}")))
        with pytest.raises(TooManyStreams):
            await stack.enter_async_context(live.stream(a_stream("one more")))
        await stack.enter_async_context(live.stream(other))


async def test_what_cannot_be_read_for_one_tenant_does_not_end_the_updates_of_all() -> None:
    class Open:
        @asynccontextmanager
        async def one(self) -> AsyncIterator[Any]:
            yield None

    class Broken:
        reads = 0

        async def read(self, session: Any, viewer: BatchViewer, *, workers: bool) -> Any:
            self.reads += 1
            raise ValueError("an unexpected value")

    unused: Any = None
    broken = Broken()
    live = Live(
        cast("Sessions", Open()),
        cast("OverviewReader", broken),
        cast("UpstreamDirectory", unused),
        unused,
        pause=0.001,
    )
    async with live.stream(a_stream()), asyncio.timeout(60):
        while broken.reads < 3:  # noqa: ASYNC110 (a count has no event)
            await asyncio.sleep(0)
