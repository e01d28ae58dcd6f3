"""Which upstream an item goes to, and how many may be there at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from batchline.config import UpstreamSettings
from batchline.executors.executor import Fence
from batchline.executors.routing import Gate, RoutingExecutor
from batchline.model import Claim, Completed, Deferred, Item, RunSettings, Verdict

T = TypeVar("T")

GPU = UpstreamSettings(
    "gpu", "http://gpu/v1", "GPU_KEY", ("large",), concurrency=2, timeout=7, max_attempts=3
)
ANY = UpstreamSettings("any", "http://any/v1", concurrency=1)


class Recorder:
    """Takes down where items are sent, and answers when told."""

    def __init__(self) -> None:
        self.sent: list[Item] = []
        self.answer = asyncio.Event()
        self.wound_down = False

    async def run(self, item: Item) -> Verdict:
        self.sent.append(item)
        await self.answer.wait()
        return Completed(item, 200, b"{}")

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        self.wound_down = True

    async def close(self) -> None:
        return None


def an_item(model: str, settings: RunSettings | None = None) -> Item:
    claim = Claim(
        1, 1, UUID(int=1), 1, None, 1, "/v1/chat/completions", model, model, 60.0, settings or RunSettings()
    )
    return Item(claim, 0, 1, b"a", b'{"model": "evil", "base_url": "http://evil"}')


def routed(scenario: Callable[[RoutingExecutor, Recorder], Awaitable[T]], *upstreams: UpstreamSettings) -> T:
    async def run() -> T:
        recorder = Recorder()
        return await scenario(RoutingExecutor(upstreams, recorder), recorder)

    return asyncio.run(run())


async def settle() -> None:
    """All that can happen without an answer has happened."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_item_goes_to_the_upstream_of_its_model_under_that_ones_rules() -> None:
    async def scenario(executor: RoutingExecutor, recorder: Recorder) -> None:
        recorder.answer.set()
        for model in ("large", "small", "http://evil/v1"):
            await executor.run(an_item(model))
        large, small, evil = (item.claim.settings for item in recorder.sent)
        assert large == RunSettings("http://gpu/v1", "GPU_KEY", 3, 7)
        assert small == evil == RunSettings("http://any/v1")

    routed(scenario, GPU, ANY)


def test_a_batch_with_an_upstream_of_its_own_keeps_it() -> None:
    async def scenario(executor: RoutingExecutor, recorder: Recorder) -> None:
        recorder.answer.set()
        item = an_item("large", RunSettings("http://mine"))
        await executor.run(item)
        assert recorder.sent == [item]

    routed(scenario, GPU)


def test_a_model_that_nobody_serves_is_left_to_the_executors_default() -> None:
    async def scenario(executor: RoutingExecutor, recorder: Recorder) -> None:
        recorder.answer.set()
        item = an_item("small")
        await executor.run(item)
        assert recorder.sent == [item]

    routed(scenario, GPU)


def test_no_more_are_in_flight_than_an_upstream_allows_and_others_go_on() -> None:
    async def scenario(executor: RoutingExecutor, recorder: Recorder) -> None:
        running = [asyncio.create_task(executor.run(an_item("large"))) for _ in range(5)]
        running.append(asyncio.create_task(executor.run(an_item("small"))))
        await settle()
        assert sorted(item.claim.model for item in recorder.sent) == ["large", "large", "small"]
        recorder.answer.set()
        assert all(isinstance(verdict, Completed) for verdict in await asyncio.gather(*running))
        assert len(recorder.sent) == 6

    routed(scenario, GPU, ANY)


def test_a_worker_that_stops_gives_back_what_waits_at_a_gate() -> None:
    async def scenario(executor: RoutingExecutor, recorder: Recorder) -> None:
        running = [asyncio.create_task(executor.run(an_item("large"))) for _ in range(3)]
        await settle()
        executor.wind_down()
        await settle()
        assert [task.done() for task in running] == [False, False, True]
        assert isinstance(running[2].result(), Deferred)
        recorder.answer.set()
        await asyncio.gather(*running)
        assert recorder.wound_down
        assert isinstance(await executor.run(an_item("large")), Deferred)

    routed(scenario, GPU)


def test_what_waited_while_its_worker_lost_the_lease_is_not_sent() -> None:
    async def scenario(executor: RoutingExecutor, recorder: Recorder) -> None:
        name: list[object | None] = ["first"]
        executor.fenced_by(lambda: name[0])
        running = [asyncio.create_task(executor.run(an_item("large"))) for _ in range(3)]
        await settle()
        name[0] = "second"
        recorder.answer.set()
        verdicts = await asyncio.gather(*running)
        assert [type(verdict) for verdict in verdicts] == [Completed, Completed, Deferred]
        assert len(recorder.sent) == 2
        name[0] = None
        assert isinstance(await executor.run(an_item("large")), Deferred)

    routed(scenario, GPU)


def test_one_who_gives_up_waiting_takes_no_place() -> None:
    async def scenario() -> None:
        gate = Gate(1)
        assert await gate.enter()
        impatient = asyncio.create_task(gate.enter())
        patient = asyncio.create_task(gate.enter())
        await settle()
        impatient.cancel()
        gate.leave()
        assert await patient
        gate.leave()
        assert await asyncio.wait_for(gate.enter(), 1)

    asyncio.run(scenario())


def test_a_turn_that_comes_together_with_a_cancellation_goes_to_the_next() -> None:
    async def scenario() -> None:
        gate = Gate(1)
        assert await gate.enter()
        unlucky = asyncio.create_task(gate.enter())
        next_one = asyncio.create_task(gate.enter())
        await settle()
        gate.leave()
        unlucky.cancel()
        await asyncio.wait([unlucky])
        assert unlucky.cancelled()
        assert await asyncio.wait_for(next_one, 1)

    asyncio.run(scenario())
