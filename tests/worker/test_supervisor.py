"""The supervisor lets services finish before it ends them, and ends all when one fails for good."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batchline.worker import supervisor as supervisor_module
from batchline.worker.service import Service
from batchline.worker.supervisor import ServiceFailed, Supervisor

PATIENCE = 120.0


class Lasting(Service):
    """Runs until it is cancelled."""

    name = "lasting"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def stop(self) -> None:
        self.calls.append("stop")

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.append("ended")


@asynccontextmanager
async def supervising() -> AsyncIterator[tuple[Supervisor, asyncio.Event]]:
    """A running supervisor, and its `abort`."""
    abort = asyncio.Event()
    supervisor = Supervisor(abort)
    async with asyncio.timeout(PATIENCE), supervisor.running():
        yield supervisor, abort


async def test_a_service_that_stops_is_ended_once_it_is_idle() -> None:
    async with supervising() as (supervisor, _):
        service = Lasting()
        supervisor.start(service)
        await asyncio.sleep(0)
        service.wake()
        stopping = asyncio.create_task(supervisor.stop(service))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert service.calls == ["stop"]
        service.idle.set()
        await stopping
        assert service.calls == ["stop", "ended"]


@pytest.mark.parametrize("why", ["abort", "patience"])
async def test_a_service_that_does_not_become_idle_is_ended_too(why: str) -> None:
    async with supervising() as (supervisor, abort):
        service = Lasting()
        supervisor.start(service)
        await asyncio.sleep(0)
        service.wake()
        if why == "abort":
            abort.set()
        await supervisor.stop(service, patience=0.01 if why == "patience" else None)
        assert service.calls == ["stop", "ended"]


async def test_a_service_that_has_ended_can_be_stopped() -> None:
    class Short(Service):
        async def run(self) -> None:
            return

    async with supervising() as (supervisor, _):
        service = Short()
        supervisor.start(service)
        service.wake()
        await supervisor.stop(service)
        await supervisor.stop(service)


async def test_a_service_that_fails_for_good_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "MAX_FAILURES", 1)
    other, aborted = Lasting(), list[bool]()

    class Broken(Service):
        name = "broken"

        async def run(self) -> None:
            raise LookupError("no such thing")

    async def run_both() -> None:
        async with supervising() as (supervisor, abort):
            supervisor.start(other, Broken())
            try:
                await asyncio.Event().wait()
            finally:
                aborted.append(abort.is_set())

    with pytest.raises(ServiceFailed, match="the worker's broken failed 1 times"):
        await run_both()
    assert other.calls == ["ended"]
    assert aborted == [True]
