"""When lines may try an upstream that was away, and when a try has shown that it is back."""

import asyncio

from batchline.upstreams.breaker import PATIENCE
from batchline.upstreams.crashes import Reach
from batchline.upstreams.http_upstream import HttpSettings
from tests.support.upstream_scene import Reached, Scene, settled


async def test_no_line_tries_an_upstream_that_no_connection_can_be_made_to() -> None:
    scene = Scene()
    scene.upstream.reach = Reach.UNREACHABLE
    scene.upstream.unreached(scene.hand.now, "no connection")
    for _ in range(20):
        await scene.hand.move(8.0)
        assert not scene.upstream.available
    assert scene.upstream.probes > 1
    scene.upstream.reach = Reach.UNCLEAR
    await scene.hand.move(8.0)
    assert scene.upstream.on_trial, "a line tells more"
    await scene.upstream.close()


async def test_a_line_whose_connection_is_not_made_yet_shows_nothing() -> None:
    """A host that drops packets: neither the probe nor the line fails before the connection times out."""
    scene = Scene()
    scene.upstream.reach = Reach.UNCLEAR
    scene.upstream.unreached(scene.hand.now, "no connection")
    await scene.hand.move(8.0)
    first, second = scene.line(1), scene.line(2)
    tries = scene.sends(first)
    await settled()
    assert tries.result()
    started, waits = scene.hand.now, scene.sends(second)
    await scene.hand.move(HttpSettings().connect_timeout)
    assert scene.upstream.on_trial
    scene.upstream.unreached(started, "the connection timed out")
    scene.upstream.end(first)
    assert not scene.upstream.available
    assert not await waits
    assert HttpSettings().connect_timeout < PATIENCE
    await scene.upstream.close()


async def test_one_line_alone_opens_the_breaker_after_some_time() -> None:
    scene = Scene()
    scene.upstream.reach = Reach.AWAY
    for _ in range(4):
        assert scene.upstream.available
        await scene.fails(scene.line(), after=5.5)
    assert not scene.upstream.available
    await scene.upstream.close()


async def test_an_upstream_is_not_away_if_probes_are_answered_well_and_lines_are_not() -> None:
    scene = Scene()
    scene.upstream.reach = Reach.AWAY
    await scene.opens()
    assert scene.upstream.away
    await scene.hand.move(1.1)
    assert scene.upstream.on_trial
    assert scene.upstream.away
    scene.upstream.reach = Reach.PRESENT
    tries = scene.line(50)
    assert await scene.sends(tries)
    await scene.fails(tries)
    assert scene.upstream.away, "it has not been asked again"
    await scene.hand.move(8.0)
    assert scene.upstream.on_trial
    assert not scene.upstream.away
    await scene.upstream.close()


async def test_a_line_tries_if_a_probe_fails_in_an_unknown_way() -> None:
    class Broken(Reached):
        async def probe(self) -> Reach:
            raise RuntimeError("a defect")

    scene = Scene()
    scene.upstream.__class__ = Broken
    scene.upstream.unreached(scene.hand.now, "no connection")
    await scene.hand.move(1.1)
    assert scene.upstream.on_trial
    await scene.upstream.close()


async def test_a_probe_that_fails_after_an_answer_does_not_open_the_breaker_again() -> None:
    probed, answer = asyncio.Event(), asyncio.Event()

    class Slow(Reached):
        async def probe(self) -> Reach:
            probed.set()
            await answer.wait()
            return Reach.UNREACHABLE

    scene = Scene()
    scene.upstream.__class__ = Slow
    scene.upstream.unreached(scene.hand.now, "no connection")
    await scene.hand.move(1.1)
    await probed.wait()
    scene.upstream.reached()
    answer.set()
    await settled()
    assert (scene.upstream.available, scene.upstream.outage, scene.upstream.limited) == (True, None, False)
    assert scene.changes == [False, True]
    await scene.upstream.close()
