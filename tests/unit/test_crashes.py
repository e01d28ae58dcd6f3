"""Requests that fail together: a crash of the upstream, an outage, or a coincidence."""

import asyncio
from collections.abc import Iterable

import pytest

from batchline.upstreams.crashes import CrashWatch, FailedRequest, Fate, Reach


class Scene:
    """An upstream with these requests in flight, whose clock stands still. The window ends when `late` is
    set, if anybody waits for it."""

    def __init__(self, in_flight: Iterable[int], reach: Reach = Reach.PRESENT) -> None:
        self.now = 100.0
        self.in_flight = dict.fromkeys(in_flight, 99.0)
        # What probes show; the last of them again and again.
        self.reaches = [reach]
        self.probes = 0
        self.timers: list[asyncio.Timeout] = []
        self.watch = CrashWatch(lambda: self.now, self._timer, self._probe)

    def _timer(self, seconds: float) -> asyncio.Timeout:
        self.timers.append(timer := asyncio.timeout(None))
        return timer

    async def _probe(self) -> Reach:
        self.probes += 1
        return self.reaches.pop(0) if len(self.reaches) > 1 else self.reaches[0]

    async def ends_window(self) -> None:
        await asyncio.sleep(0)
        for timer in self.timers:
            if not timer.expired():
                timer.reschedule(asyncio.get_running_loop().time())

    def fails(
        self,
        key: int,
        *,
        started: float = 99.0,
        lost: bool = True,
        suspect: bool = False,
        proven: bool = True,
    ) -> asyncio.Task[Fate]:
        failed = FailedRequest(key, started, lost, suspect, proven)
        return asyncio.create_task(self.watch.fate(failed, dict(self.in_flight)))


async def fates(*tasks: asyncio.Task[Fate]) -> set[Fate]:
    async with asyncio.timeout(60):
        return set(await asyncio.gather(*tasks))


async def test_all_connections_lost_at_once_are_a_crash() -> None:
    scene = Scene([1, 2, 3])
    assert await fates(*map(scene.fails, (1, 2, 3))) == {Fate.CRASHED}
    assert (scene.watch.crashes, scene.probes) == (1, 0)
    assert not scene.watch.active


async def test_a_lost_connection_while_others_are_answered_is_none() -> None:
    scene = Scene([1, 2, 3])
    lost = scene.fails(1)
    await asyncio.sleep(0)
    scene.now += 0.1
    scene.watch.answered(99.0)
    assert await fates(lost) == {Fate.SINGLE}
    assert scene.watch.crashes == 0


async def test_an_answer_that_was_under_way_at_the_crash_does_not_hide_it() -> None:
    scene = Scene([1, 2, 3])
    lost = [scene.fails(1), scene.fails(2)]
    await asyncio.sleep(0)
    scene.watch.answered(99.0)
    scene.watch.ended(3)
    scene.watch.unreached()
    assert await fates(*lost) == {Fate.CRASHED}


async def test_a_lost_connection_while_others_go_on_is_none_when_the_window_ends() -> None:
    scene = Scene([1, 2])
    lost = scene.fails(1)
    await scene.ends_window()
    assert await fates(lost) == {Fate.SINGLE}


async def test_requests_that_fail_later_belong_to_the_crash() -> None:
    scene = Scene([1, 2, 3])
    lost = scene.fails(1)
    await asyncio.sleep(0)
    scene.watch.unreached()
    await scene.ends_window()
    assert await fates(lost) == {Fate.CRASHED}
    assert await fates(scene.fails(2), scene.fails(3)) == {Fate.CRASHED}
    assert scene.watch.crashes == 1


@pytest.mark.parametrize(
    ("reach", "proven", "fate"),
    [
        (Reach.UNREACHABLE, True, Fate.CRASHED),
        (Reach.UNREACHABLE, False, Fate.CRASHED),
        (Reach.AWAY, True, Fate.CRASHED),
        (Reach.AWAY, False, Fate.AWAY),
        (Reach.PRESENT, True, Fate.SINGLE),
    ],
)
async def test_one_request_alone_that_is_lost_is_a_crash_if_the_upstream_is_away_then(
    reach: Reach, proven: bool, fate: Fate
) -> None:
    scene = Scene([1], reach)
    assert await fates(scene.fails(1, proven=proven)) == {fate}
    assert scene.probes == 1


@pytest.mark.parametrize(
    ("then", "fate"),
    [
        (Reach.UNREACHABLE, Fate.CRASHED),
        (Reach.PRESENT, Fate.SINGLE),
        (Reach.UNCLEAR, Fate.SINGLE),
    ],
)
async def test_an_upstream_that_takes_a_connection_and_does_not_answer_may_be_about_to_end(
    then: Reach, fate: Fate
) -> None:
    scene = Scene([1], Reach.UNCLEAR)
    scene.reaches.append(then)
    lost = scene.fails(1)
    while not scene.timers:  # noqa: ASYNC110 (it waits in the same loop)
        await asyncio.sleep(0)
    await scene.ends_window()
    assert await fates(lost) == {fate}
    assert scene.probes == 2


async def test_a_request_that_was_sent_while_the_upstream_died_is_no_second_crash() -> None:
    scene = Scene([1, 2])
    scene.now = 101.0
    assert await fates(scene.fails(1), scene.fails(2)) == {Fate.CRASHED}
    scene.in_flight = {3: 100.5}
    assert await fates(scene.fails(3, started=100.5)) == {Fate.AWAY}
    assert scene.watch.crashes == 1

    scene.in_flight = {4: 102.0, 5: 102.0}
    scene.now = 103.0
    assert await fates(*(scene.fails(key, started=102.0) for key in (4, 5))) == {Fate.CRASHED}
    assert scene.watch.crashes == 2


@pytest.mark.parametrize(
    ("reach", "fate"),
    [(Reach.UNREACHABLE, Fate.CRASHED), (Reach.AWAY, Fate.CRASHED), (Reach.PRESENT, Fate.SINGLE)],
)
async def test_errors_for_all_in_flight_are_a_crash_if_the_upstream_is_away_then(
    reach: Reach, fate: Fate
) -> None:
    """As of a server whose engine has died."""
    scene = Scene([1, 2], reach)
    assert await fates(scene.fails(1, lost=False), scene.fails(2, lost=False)) == {fate}


async def test_an_error_for_one_line_alone_asks_nothing_unless_it_is_a_suspect() -> None:
    scene = Scene([1], Reach.UNREACHABLE)
    assert await fates(scene.fails(1, lost=False)) == {Fate.SINGLE}
    assert scene.probes == 0
    assert await fates(scene.fails(1, lost=False, suspect=True)) == {Fate.CRASHED}


async def test_a_cancelled_decision_keeps_nobody_waiting() -> None:
    scene = Scene([1, 2])

    async def hangs() -> Reach:
        await asyncio.Event().wait()
        return Reach.PRESENT

    scene.watch._probe = hangs
    first = scene.fails(1, lost=False)
    await asyncio.sleep(0)
    last = scene.fails(2)
    await asyncio.sleep(0)
    last.cancel()
    assert await fates(first) == {Fate.SINGLE}
