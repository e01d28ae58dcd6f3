"""The timer for retries: it goes off once, for the first of those that are expected."""

import asyncio

from batchline.worker.retry_timer import RetryTimer

PATIENCE = 60.0
LATER = 3600.0


async def test_a_retry_timer_fires_at_the_earliest_retry() -> None:
    due = asyncio.Event()
    timer = RetryTimer(due.set)
    assert timer.idle.is_set()
    for delay in (LATER, 0.0, LATER):
        timer.expect(delay)
    assert not timer.idle.is_set()
    async with asyncio.timeout(PATIENCE):
        await due.wait()
    assert timer.idle.is_set(), "of later ones it knows nothing"


async def test_the_callback_of_a_retry_timer_may_expect_another_retry() -> None:
    reported, twice = list[bool](), asyncio.Event()

    def due() -> None:
        reported.append(timer.idle.is_set())
        if len(reported) == 2:
            twice.set()
        else:
            timer.expect(0.0)

    timer = RetryTimer(due)
    timer.expect(0.0)
    async with asyncio.timeout(PATIENCE):
        await twice.wait()
    assert reported == [False, False], "it is not idle before others are woken"
    assert timer.idle.is_set()


async def test_a_timer_that_was_cancelled_waits_for_nothing() -> None:
    timer = RetryTimer(lambda: None)
    timer.cancel()
    timer.expect(LATER)
    timer.cancel()
    assert timer.idle.is_set()
