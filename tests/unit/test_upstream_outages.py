"""An upstream that is away, and lines that run alone: what is sent, what waits, and who is told."""

import asyncio

from batchline.upstreams.breaker import PATIENCE
from batchline.upstreams.crashes import Fate, Reach
from batchline.upstreams.retry import Backoff
from batchline.upstreams.timing import Timing
from tests.support.http_executor import an_item
from tests.support.upstream_scene import Reached, Scene, settled


async def test_an_upstream_that_gives_nothing_but_gateway_errors_is_not_available() -> None:
    scene = Scene()
    await scene.opens()
    assert scene.changes == [False]
    assert scene.upstream.limited
    assert scene.upstream.outage is not None
    assert scene.upstream.outage.startswith("it answers 503, and nothing else for ")
    assert scene.upstream.view().unavailable_for is not None
    assert scene.upstream.view().connects, "a gateway answers"
    await scene.upstream.close()


async def test_errors_between_good_answers_and_errors_of_one_line_do_not_open_it() -> None:
    scene = Scene()
    for number in range(1, 30):
        await scene.fails(scene.line(number))
        scene.upstream.answered(scene.hand.now)
        scene.hand.now += 1.0
    for _ in range(30):
        await scene.fails(scene.line(77), 504, after=0.4)
    assert scene.upstream.available
    assert scene.changes == []


async def test_other_errors_and_refusals_show_that_it_is_there() -> None:
    scene = Scene()
    for number in range(1, 30):
        await scene.fails(scene.line(number), (503, 500)[number % 2], after=1.0)
    for number in range(1, 30):
        await scene.fails(scene.line(number), 502, after=1.0)
        scene.upstream.refused(scene.hand.now, 0.0)
    assert scene.upstream.available


async def test_one_line_tries_when_the_delay_has_passed_and_its_answer_lets_the_others_go() -> None:
    scene = Scene()
    await scene.opens()
    lines = [scene.line(number) for number in range(1, 4)]
    waiting = [scene.sends(line) for line in lines]
    await scene.hand.move(0.9)
    assert [task.done() for task in waiting] == [False, False, False]
    await scene.hand.move(0.2)
    assert scene.changes == [False, True], "lines may be claimed again"
    assert [task.done() for task in waiting] == [True, False, False]
    scene.upstream.answered(scene.upstream.sent[id(lines[0])])
    scene.upstream.end(lines[0])
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert (scene.upstream.limited, scene.upstream.outage) == (False, None)


async def test_if_the_line_that_tries_fails_the_others_are_given_back_for_longer() -> None:
    scene = Scene()
    await scene.opens()
    lines = [scene.line(number) for number in range(1, 4)]
    waiting = [scene.sends(line) for line in lines]
    await scene.hand.move(1.1)
    assert await scene.upstream.fate(lines[0], scene.upstream.sent[id(lines[0])], 503) is Fate.SINGLE
    scene.upstream.end(lines[0])
    assert await asyncio.gather(*waiting) == [True, False, False]
    assert scene.upstream.rest == 2.0
    assert scene.changes == [False, True, False]
    await scene.upstream.close()


async def test_others_do_not_wait_for_an_answer_that_takes_long() -> None:
    scene = Scene()
    await scene.opens()
    waiting = [scene.sends(scene.line(number)) for number in range(1, 4)]
    await scene.hand.move(1.1)
    assert [task.done() for task in waiting] == [True, False, False]
    await scene.hand.move(PATIENCE)
    assert await asyncio.gather(*waiting) == [True, True, True]


async def test_a_line_that_tries_and_is_not_sent_after_all_leaves_it_to_the_next() -> None:
    scene = Scene()
    await scene.opens()
    names = iter(["first", "second"])
    given_up = asyncio.create_task(scene.upstream.may_send(lambda: next(names), scene.line(1)))
    await settled()
    waiting = scene.sends(scene.line(2))
    await scene.hand.move(1.1)
    assert (await given_up, await waiting) == (False, True)


async def test_with_a_health_path_lines_try_only_when_it_is_well() -> None:
    scene = Scene()
    scene.upstream.health_path = "/health"
    scene.upstream.reach = Reach.AWAY
    await scene.opens()
    waiting = scene.sends(scene.line())
    for _ in range(5):
        await scene.hand.move(20.0)
    assert (scene.upstream.probes, scene.upstream.available, waiting.done()) == (5, False, False)
    scene.upstream.reach = Reach.PRESENT
    await scene.hand.move(20.0)
    assert await waiting
    assert scene.upstream.available


async def test_an_answer_from_before_an_outage_does_not_end_it() -> None:
    scene = Scene()
    old = scene.upstream.begin(line := scene.line(1))
    scene.hand.now += 1.0
    scene.upstream.unreached(scene.hand.now, "refused")
    scene.upstream.answered(old)
    scene.upstream.end(line)
    assert not scene.upstream.available
    await scene.upstream.close()


async def test_a_crash_is_no_outage_of_lines_that_arrive_later() -> None:
    scene = Scene()
    scene.upstream.reach = Reach.UNREACHABLE
    assert await scene.fails(scene.line(), None) is Fate.CRASHED
    assert (scene.upstream.crashes, scene.upstream.available) == (1, False)
    await scene.upstream.close()


async def test_a_line_that_was_in_flight_at_two_crashes_runs_alone() -> None:
    scene = Scene()
    first, suspect, last = scene.line(1), scene.line(2, crashes=2), scene.line(3)
    scene.upstream.begin(first)
    alone = scene.sends(suspect)
    await settled()
    assert scene.upstream.limited
    waiting = scene.sends(last)
    await settled()
    assert (alone.done(), waiting.done()) == (False, False), "another request is in flight"
    scene.upstream.end(first)
    assert await alone
    await settled()
    assert not waiting.done(), "it would not be alone"
    scene.upstream.end(suspect)
    assert await waiting
    assert not scene.upstream.limited


async def test_nothing_waits_for_a_line_that_runs_alone_once_the_worker_stops() -> None:
    scene, first = Scene(), an_item(None)
    scene.upstream.begin(first)
    alone, waiting = scene.sends(scene.line(2, crashes=2)), scene.sends(scene.line(3))
    await settled()
    scene.stopping.set()
    assert not await alone
    assert scene.upstream.quarantine.reserved_by is None
    await waiting


def test_a_refusal_in_company_is_excused_and_one_alone_is_not() -> None:
    upstream, one = Scene().upstream, an_item(None, line_no=1)
    started = upstream.begin(one)
    assert not upstream.excuses(started, 503)
    assert not upstream.excuses(started, 429)
    other = an_item(None, line_no=2)
    upstream.begin(other)
    assert upstream.excuses(started, 503)
    assert upstream.excuses(started, 429)
    assert not upstream.excuses(started, 502)
    assert not upstream.excuses(started, None)
    upstream.end(other)
    upstream.answered(started)
    assert upstream.excuses(started, 503), "another line was answered meanwhile"


async def test_gateway_errors_are_excused_from_the_second_in_a_row_on() -> None:
    scene = Scene()
    item = scene.line()
    await scene.fails(item, 502)
    assert not scene.upstream.excuses(scene.hand.now, 502)
    await scene.fails(item, 502)
    assert scene.upstream.excuses(scene.hand.now, 502)
    assert scene.upstream.excuses(scene.hand.now, None)
    assert not scene.upstream.excuses(scene.hand.now, 500)


async def test_a_line_is_not_sent_alone_while_another_worker_runs_one_and_comes_back_later() -> None:
    scene, ours = Scene(), False

    async def is_ours() -> bool:
        return ours

    scene.upstream.quarantine.is_ours = is_ours
    suspect = scene.line(1, crashes=2)
    assert not await scene.sends(suspect)
    assert (scene.upstream.rest_of(suspect), scene.upstream.rest) == (6.0, 0.0)
    assert await scene.upstream.may_send(lambda: "me", scene.line(2)), "others go on"
    ours = True
    assert await scene.sends(suspect)


async def test_the_health_path_of_an_upstream_that_is_not_in_use_is_requested_now_and_then() -> None:
    scene = Scene()
    scene.upstream.health_path = "/health"
    item = scene.line()
    scene.upstream.answered(scene.upstream.begin(item))
    await scene.upstream.check_health()
    scene.hand.now += 11.0
    await scene.upstream.check_health()
    assert scene.upstream.probes == 0, "a request is in flight"
    scene.upstream.end(item)
    for _ in range(3):
        await scene.upstream.check_health()
    assert (scene.upstream.probes, scene.upstream.available) == (1, True)
    scene.hand.now += 11.0
    scene.upstream.reach = Reach.AWAY
    await scene.upstream.check_health()
    assert not scene.upstream.available
    assert scene.upstream.view().connects
    assert scene.changes == [False]
    await scene.upstream.close()


async def test_a_health_path_is_not_requested_without_work_or_without_being_set() -> None:
    scene = Scene()
    await scene.upstream.check_health()
    unused = Reached("handlers", 4, scene.stopping, Timing(), Backoff(1.0, 8.0))
    unused.health_path = "/health"
    await unused.check_health()
    assert (scene.upstream.probes, unused.probes) == (0, 0)
