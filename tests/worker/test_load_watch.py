"""The load watch of a worker, with a server that reports its load over real HTTP."""

import asyncio

import pytest

from batchline.model.concurrency import AUTO
from batchline.simulate import SimulateSettings, Simulator
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.server_load import ServerLoad
from batchline.worker.load_watch import LoadWatch
from tests.support.waiting import eventually

pytestmark = pytest.mark.uvloop


async def test_the_load_of_upstreams_with_requests_in_flight_is_noted_while_the_watch_stays_idle() -> None:
    simulator = Simulator(SimulateSettings(metrics="vllm"))
    host, port = await simulator.start()
    upstreams = Upstreams(concurrency=AUTO)
    upstream, unused = (upstreams.get(f"http://{host}:{port}/{path}v1") for path in ("", "unused/"))
    for each in (upstream, unused):
        each.route("/v1/chat/completions", None)
        each.limit_of("m")
    upstream.sent[1] = 0.0
    watch = LoadWatch(upstreams)
    running = asyncio.create_task(watch.run())
    await eventually("a load", lambda: upstream.server_load is not None)
    assert upstream.server_load == ServerLoad(running=0, waiting=0)
    assert unused.server_load is None
    assert watch.idle.is_set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await upstreams.close()
    await simulator.stop()
