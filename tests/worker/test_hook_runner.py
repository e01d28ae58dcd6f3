"""The hook runner alone: it retries what failed, and a hook that hangs delays no other."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from batchline.hooks.delivery import MAX_ATTEMPTS
from batchline.hooks.hook import Hook
from batchline.model import Batch
from batchline.model.ids import BATCH, show
from batchline.store import hooks
from batchline.store.hooks import HookDelivery, HookOutcome, TakenHook
from batchline.store.session import Session
from batchline.worker.hook_runner import HookRunner
from tests.support.builders import sql, until
from tests.support.hooks import fan_out, python_hook, recorded, recording, some_hooks
from tests.support.webhooks import an_ended_batch

PATIENCE = 120.0


@asynccontextmanager
async def running(db: Session, *each: Hook) -> AsyncIterator[HookRunner]:
    runner = HookRunner(db, some_hooks(*each))
    await runner.register()
    task = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(PATIENCE):
            yield runner
    finally:
        task.cancel()
        await asyncio.wait([task])


async def ended_batches(db: Session, count: int) -> list[Batch]:
    """Batches that have ended, and deliveries of their events."""
    found = [await an_ended_batch(db) for _ in range(count)]
    await fan_out(db)
    return found


async def delivery_to(db: Session, hook: str) -> HookDelivery:
    (found,) = [each for each in await hooks.deliveries(db, limit=100) if each.hook == hook]
    return found


def blocking(name: str, until_exists: Path) -> Hook:
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    return Hook(name, (sys.executable, "-c", code, str(until_exists)))


async def test_each_event_reaches_the_hook_once_and_then_the_runner_is_idle(
    db: Session, tmp_path: Path
) -> None:
    async with running(db, recording(tmp_path / "got")) as runner:
        batches = await ended_batches(db, 5)
        for _ in range(2):
            runner.wake()
            await runner.idle.wait()
    got = recorded(tmp_path / "got")
    assert {event["data"]["id"] for event in got} == {show(BATCH, batch.id) for batch in batches}
    assert [(event["type"], event["attempt"]) for event in got] == [("batch.completed", 1)] * 5
    assert {each.state for each in await hooks.deliveries(db, limit=9)} == {"delivered"}


class Settles:
    """The delays of all attempts, and how the delivery was right after each, before any timer."""

    def __init__(self, db: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self._db = db
        self._settle = hooks.settle
        self.delays: list[float] = []
        # From a moment before the settle to the next attempt.
        self.gaps: list[float] = []
        self.found: list[HookDelivery] = []
        monkeypatch.setattr(hooks, "settle", self.settle)

    async def settle(
        self, session: Session, taken: TakenHook, outcome: HookOutcome, *, delay: float, max_attempts: int
    ) -> bool | None:
        ((before,),) = await sql(self._db, "SELECT now()")
        abandoned = await self._settle(session, taken, outcome, delay=delay, max_attempts=max_attempts)
        self.delays.append(delay)
        self.found.append(await delivery_to(self._db, taken.hook))
        self.gaps.append((self.found[-1].available_at - before).total_seconds())
        return abandoned


async def test_a_hook_that_fails_is_tried_again_after_a_delay_and_changes_no_status(
    db: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_once = python_hook(
        "fragile",
        f"import os, sys; p = {str(tmp_path / 'tried')!r}; new = not os.path.exists(p); open(p, 'w')\n"
        "sys.exit('not yet' if new else 0)",
    )
    settles = Settles(db, monkeypatch)
    async with running(db, fails_once) as runner:
        (batch,) = await ended_batches(db, 1)
        runner.wake()
        await runner.idle.wait()
        failed = settles.found[0]
        assert (failed.state, failed.attempts, failed.last_error) == (
            "waiting",
            1,
            "it ended with exit code 1",
        )
        assert failed.last_output == "not yet\n"
        assert 0 < settles.delays[0] <= settles.gaps[0]
        assert await sql(db, "SELECT ended_at, failed_at FROM batchline.batches") == [(batch.ended_at, None)]

        # Nobody wakes it: it has a timer.
        async def is_delivered() -> bool:
            return (await delivery_to(db, "fragile")).state == "delivered"

        await until(is_delivered)
    assert (await delivery_to(db, "fragile")).attempts == 2


async def test_the_delay_grows_with_each_failure(db: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    settles = Settles(db, monkeypatch)
    async with running(db, python_hook("bad", "raise SystemExit(3)")) as runner:
        await ended_batches(db, 1)
        while len(settles.delays) < 6:
            await sql(db, "UPDATE batchline.hook_deliveries SET available_at = now()")
            runner.wake()
            await runner.idle.wait()
    for nth, (delay, gap) in enumerate(zip(settles.delays, settles.gaps, strict=True)):
        assert 5 * 2**nth / 2 <= delay <= 5 * 2**nth
        assert delay <= gap


async def test_a_hook_that_fails_to_the_last_is_abandoned(db: Session) -> None:
    async with running(db, python_hook("bad", "raise SystemExit(3)")) as runner:
        await ended_batches(db, 1)
        await sql(db, "UPDATE batchline.hook_deliveries SET attempts = %(n)s", n=MAX_ATTEMPTS - 1)
        runner.wake()
        await runner.idle.wait()
    assert (await delivery_to(db, "bad")).state == "abandoned"


async def test_a_hook_that_hangs_delays_no_other_hook_and_keeps_the_runner_busy(
    db: Session, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    async with running(db, blocking("slow", go), recording(tmp_path / "got", "quick")) as runner:
        await ended_batches(db, 4)
        runner.wake()

        async def all_quick_ones() -> bool:
            return len(recorded(tmp_path / "got")) == 4

        await until(all_quick_ones)
        assert not runner.idle.is_set()
        slow = sorted(each.state for each in await hooks.deliveries(db, limit=9) if each.hook == "slow")
        assert slow == ["running", "running", "waiting", "waiting"]
        go.touch()
        await runner.idle.wait()
    assert {each.state for each in await hooks.deliveries(db, limit=9)} == {"delivered"}


async def test_a_runner_that_stops_finishes_what_runs_and_takes_no_more(db: Session, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with running(db, blocking("slow", go)) as runner:
        await ended_batches(db, 4)
        runner.wake()

        async def two_run() -> bool:
            return [each.state for each in await hooks.deliveries(db, limit=9)].count("running") == 2

        await until(two_run)
        runner.stop()
        go.touch()
        await runner.idle.wait()
    states = sorted(each.state for each in await hooks.deliveries(db, limit=9))
    assert states == ["delivered", "delivered", "waiting", "waiting"]


async def test_two_workers_with_the_same_hook_deliver_each_event_once(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    hook = recording(tmp_path / "got")
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(Session(database_url, f"{n}")) for n in range(2)]
        runners = [await stack.enter_async_context(running(session, hook)) for session in sessions]
        await ended_batches(db, 8)
        for runner in runners:
            runner.wake()
        for runner in runners:
            await runner.idle.wait()
    got = [event["id"] for event in recorded(tmp_path / "got")]
    assert len(got) == len(set(got)) == 8


async def test_an_event_of_a_batch_that_was_deleted_is_abandoned(db: Session, tmp_path: Path) -> None:
    async with running(db, recording(tmp_path / "got")) as runner:
        (batch,) = await ended_batches(db, 1)
        await sql(db, "DELETE FROM batchline.lanes")
        await sql(db, "DELETE FROM batchline.batches WHERE id = %(batch)s", batch=batch.id)
        runner.wake()
        await runner.idle.wait()
    delivery = await delivery_to(db, "recorder")
    assert (delivery.state, delivery.last_error) == ("abandoned", "the batch does not exist any more")
    assert recorded(tmp_path / "got") == []
