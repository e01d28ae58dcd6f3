"""Which upstream an item goes to, and how many may be there at once."""

import asyncio
from uuid import UUID

from batchline.config.settings import UpstreamSettings
from batchline.executors.executor import Fence
from batchline.executors.routing import RoutingExecutor
from batchline.model import Claim, Completed, Item, RunSettings, Verdict

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
        self.fence: Fence | None = None

    async def run(self, item: Item) -> Verdict:
        self.sent.append(item)
        await self.answer.wait()
        return Completed(item, 200, b"{}")

    def fenced_by(self, fence: Fence) -> None:
        self.fence = fence

    def wind_down(self) -> None:
        self.wound_down = True

    async def close(self) -> None:
        return None


def an_item(model: str, settings: RunSettings | None = None) -> Item:
    claim = Claim(
        1, 1, UUID(int=1), 1, None, 1, "/v1/chat/completions", model, model, 60.0, settings or RunSettings()
    )
    return Item(claim, 0, 1, b"a", b'{"model": "evil", "base_url": "http://evil"}')


async def test_an_item_goes_to_the_upstream_of_its_model_under_that_ones_rules() -> None:
    recorder = Recorder()
    executor = RoutingExecutor((GPU, ANY), recorder)
    recorder.answer.set()
    for model in ("large", "small", "http://evil/v1"):
        await executor.run(an_item(model))
    large, small, evil = (item.claim.settings for item in recorder.sent)
    assert large == RunSettings("http://gpu/v1", "GPU_KEY", 3, 7)
    assert small == evil == RunSettings("http://any/v1")


async def test_a_batch_with_an_upstream_of_its_own_keeps_it() -> None:
    recorder = Recorder()
    executor = RoutingExecutor((GPU,), recorder)
    recorder.answer.set()
    item = an_item("large", RunSettings("http://mine"))
    await executor.run(item)
    assert recorder.sent == [item]


async def test_a_model_that_no_upstream_serves_uses_the_executors_default() -> None:
    recorder = Recorder()
    executor = RoutingExecutor((GPU,), recorder)
    recorder.answer.set()
    item = an_item("small")
    await executor.run(item)
    assert recorder.sent == [item]


async def test_a_new_claim_with_a_known_number_is_routed_again() -> None:
    """A span keeps its number when it is taken over; what is remembered of it is what came first."""
    recorder = Recorder()
    executor = RoutingExecutor((GPU, ANY), recorder)
    recorder.answer.set()
    for model in ("large", "small", "large"):
        await executor.run(an_item(model))
    assert [item.claim.settings.upstream for item in recorder.sent] == [
        "http://gpu/v1",
        "http://any/v1",
        "http://gpu/v1",
    ]


async def test_stopping_and_the_fence_are_passed_on() -> None:
    recorder = Recorder()
    executor = RoutingExecutor((GPU,), recorder)
    executor.fenced_by(lambda: "me")
    executor.wind_down()
    assert recorder.wound_down
    assert recorder.fence is not None
    assert recorder.fence() == "me"
