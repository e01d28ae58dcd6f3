"""One timer ends the calls of an operation in order, and leaves other cancellations alone."""

import asyncio
from collections.abc import Sequence

import pytest

from batchline.executors.python.loop_share import LoopShare
from batchline.executors.python.time_limits import TimeLimits
from tests.support.virtual_time import VirtualTimeLoop


async def limited(limits: TimeLimits, seconds: float) -> bool:
    """Whether a call of so many seconds has expired."""
    call = limits.begin()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if call is None or not call.expired:
            raise
    finally:
        limits.end(call)
    return call is not None and call.expired


def test_each_call_expires_at_its_own_time() -> None:
    async def calls() -> Sequence[tuple[bool, float]]:
        limits, loop = TimeLimits(10), asyncio.get_running_loop()

        async def one(after: float, lasts: float) -> tuple[bool, float]:
            await asyncio.sleep(after)
            return await limited(limits, lasts), loop.time()

        found = await asyncio.gather(one(0, 5), one(1, 100), one(2, 9), one(3, 100), one(50, 11))
        limits.close()
        return found

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert list(runner.run(calls())) == [(False, 5), (True, 11), (False, 11), (True, 13), (True, 60)]


def test_a_task_is_not_cancelled_after_its_call_has_expired() -> None:
    async def call() -> int:
        assert await limited(TimeLimits(1), 100)
        await asyncio.sleep(100)
        task = asyncio.current_task()
        return 0 if task is None else task.cancelling()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(call()) == 0


def test_a_cancellation_from_outside_is_passed_on() -> None:
    async def call() -> None:
        task = asyncio.create_task(limited(TimeLimits(1000), 100))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(call())


async def test_calls_get_their_turns_in_order_and_others_run_in_between() -> None:
    now, order = 0.0, list[str]()
    share = LoopShare(lambda: now)

    async def call(name: str) -> None:
        nonlocal now
        for _ in range(2):
            while share.used_up():
                await share.later_pass()
            now += 1
            order.append(name)

    async def other() -> None:
        for _ in range(4):
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(call("a"), call("b"), other())
    assert [name for name in order if name != "other"] == ["a", "a", "b", "b"]
    assert order[: order.index("b")].count("other") > 1
