"""The service protocol: a service works when it is woken, and its idle signal is never set too early."""

import asyncio

from batchline.worker.service import Service, are_idle, until_idle

PATIENCE = 120.0


class Working(Service):
    """Each piece of work waits for a permit."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = asyncio.Semaphore(0)
        self.begun = asyncio.Semaphore(0)
        self.works = 0

    async def _work(self) -> None:
        self.begun.release()
        await self.permits.acquire()
        self.works += 1


async def test_a_service_is_busy_from_its_wake_up_to_the_end_of_its_work() -> None:
    service = Working()
    assert service.idle.is_set()
    service.wake()
    assert not service.idle.is_set(), "before it has even begun"
    running = asyncio.create_task(service.run())
    async with asyncio.timeout(PATIENCE):
        await service.begun.acquire()
        assert not service.idle.is_set()
        service.permits.release()
        await service.idle.wait()
    assert service.works == 1
    running.cancel()


async def test_a_wake_up_during_the_work_leads_to_more_work_without_an_idle_moment() -> None:
    service = Working()
    running = asyncio.create_task(service.run())
    service.wake()
    async with asyncio.timeout(PATIENCE):
        await service.begun.acquire()
        service.wake()
        service.permits.release()
        await service.begun.acquire()
        assert not service.idle.is_set()
        service.permits.release()
        await service.idle.wait()
    assert service.works == 2
    running.cancel()


async def test_services_that_wake_each_other_are_idle_only_when_all_are() -> None:
    """The first ends by waking the second: whoever waits for both sees no gap in between."""
    first, second = Working(), Working()
    waiting = asyncio.create_task(until_idle(lambda: [first, second]))
    first.wake()
    await asyncio.sleep(0)
    assert not waiting.done()
    second.wake()
    first.idle.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    assert not are_idle([first, second])
    second.idle.set()
    async with asyncio.timeout(PATIENCE):
        await waiting
