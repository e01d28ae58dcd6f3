"""The health watch of a worker, with a server that goes away over real HTTP."""

import asyncio

import pytest

from batchline.simulate import SimulateSettings, Simulator
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.health_watch import HealthWatch
from tests.support.waiting import eventually

pytestmark = pytest.mark.uvloop


async def test_an_upstream_that_goes_away_is_noticed_before_a_line_is_sent() -> None:
    simulator = Simulator(SimulateSettings())
    host, port = await simulator.start()
    upstreams = Upstreams()
    upstream, unused = (upstreams.get(f"http://{host}:{port}/{path}v1") for path in ("", "unused/"))
    for each in (upstream, unused):
        each.health_path, each.health_every = "/v1/models", 0.1
    upstream.watch(lambda: None)
    await upstreams.check_health()
    assert upstream.available
    await simulator.stop()
    watch = HealthWatch(upstreams)
    running = asyncio.create_task(watch.run())
    await eventually("an outage", lambda: upstream.outage is not None)
    assert upstream.outage == "no connection to its health path can be made"
    assert unused.outage is None, "nobody has work for it"
    assert watch.idle.is_set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await upstreams.close()
