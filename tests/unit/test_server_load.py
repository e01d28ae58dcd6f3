"""The load that an upstream reports, read over real HTTP on a clock that stands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pyreqwest.client import Client, ClientBuilder

from batchline.model.concurrency import AUTO
from batchline.simulate import SimulateSettings, Simulator
from batchline.simulate.http import Connection, Handler, ReceivedRequest
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.server_load import LoadReader, ServerLoad, load_url, parsed_load
from batchline.upstreams.timing import Timing
from tests.support.stepped_upstream import simulating

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a } b"} 3.0
vllm:num_requests_running{engine="1",model_name="a } b"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a } b"} 7.0
vllm:num_requests_waiting{engine="1",model_name="a } b"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0
"""


class HandClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class PageServer:
    """Answers every request with a status and a page, and keeps the requests."""

    def __init__(self) -> None:
        self.status, self.page = 200, VLLM.encode()
        self.requests: list[ReceivedRequest] = []

    def handle(self, connection: Connection, request: ReceivedRequest) -> None:
        self.requests.append(request)
        connection.answer(self.status, self.page)


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[str]:
    simulator = Simulator(SimulateSettings(), lambda _: handle)
    host, port = await simulator.start()
    try:
        yield f"http://{host}:{port}/v1"
    finally:
        await simulator.stop(grace_s=0)


@asynccontextmanager
async def a_client() -> AsyncIterator[Client]:
    async with ClientBuilder().no_proxy().follow_redirects(False).build() as client:
        yield client


def test_the_load_of_all_engines_is_summed() -> None:
    assert parsed_load(VLLM) == ServerLoad(running=5, waiting=8)


def test_times_and_line_ends_of_a_page_do_not_matter() -> None:
    page = "llamacpp:requests_processing 1 1700000000000\r\nllamacpp:requests_deferred\t12 \r\n"
    assert parsed_load(page) == ServerLoad(1, 12)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "process_cpu_seconds_total 3\n",
        "vllm:num_requests_running 3\n",
        "vllm:num_requests_running 3\nsglang:num_queue_reqs 4\n",
        "vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n",
        "vllm:num_requests_running -1\nvllm:num_requests_waiting 1\n",
        "vllm:num_requests_running 1e300\nvllm:num_requests_waiting +Inf\n",
        "vllm:num_requests_running many\nvllm:num_requests_waiting 1\n",
    ],
)
def test_a_page_without_a_sensible_load_shows_none(page: str) -> None:
    assert parsed_load(page) is None


@pytest.mark.parametrize(
    ("upstream", "url"),
    [
        ("http://host:8000", "http://host:8000/metrics"),
        ("http://host:8000/v1", "http://host:8000/metrics"),
        ("http://host:8000/v1/", "http://host:8000/metrics"),
        ("http://user:word@host/v1beta/openai", "http://user:word@host/metrics"),
        ("https://host/team/v1?key=k", "https://host/team/metrics?key=k"),
    ],
)
def test_the_metrics_lie_beside_the_version(upstream: str, url: str) -> None:
    assert str(load_url(upstream)) == url


@pytest.mark.uvloop
@pytest.mark.parametrize("server", ["vllm", "sglang", "llamacpp"])
async def test_the_load_of_each_kind_of_server_is_read(server: str) -> None:
    async with (
        simulating(metrics=server, latency_ms=100, concurrency=2) as upstream,
        a_client() as client,
    ):
        for number in range(5):
            await upstream.send(str(number))
        reader = LoadReader(f"http://{upstream.http.host}:{upstream.http.port}/v1", HandClock())
        assert await reader.read(client) == ServerLoad(running=2, waiting=3)


@pytest.mark.uvloop
async def test_a_server_that_reports_its_load_is_asked_every_second_at_its_root() -> None:
    pages, clock = PageServer(), HandClock()
    async with serving(pages.handle) as url, a_client() as client:
        reader = LoadReader(url, clock)
        for _ in range(3):
            assert reader.due
            assert await reader.read(client) == ServerLoad(5, 8)
            assert not reader.due
            clock.now += 1.0
    assert [request.path for request in pages.requests] == [b"/metrics"] * 3


@pytest.mark.uvloop
@pytest.mark.parametrize("status", [301, 401, 403, 404, 500, 501])
async def test_a_server_without_metrics_is_asked_again_after_minutes_only(status: int) -> None:
    pages, clock = PageServer(), HandClock()
    pages.status = status
    async with serving(pages.handle) as url, a_client() as client:
        reader = LoadReader(url, clock)
        assert await reader.read(client) is None
        clock.now += 299.0
        assert not reader.due
        clock.now += 600.0
        pages.status = 200
        assert reader.due
        assert await reader.read(client) == ServerLoad(5, 8)


@pytest.mark.uvloop
async def test_a_page_beyond_all_measure_is_not_read_to_its_end() -> None:
    pages, clock = PageServer(), HandClock()
    pages.page += b"#" * (8 * 1024 * 1024)
    async with serving(pages.handle) as url, a_client() as client:
        reader = LoadReader(url, clock)
        assert await reader.read(client) is None
        clock.now += 299.0
        assert not reader.due


@pytest.mark.uvloop
async def test_a_server_that_cannot_be_reached_is_asked_less_and_less_often() -> None:
    pages, clock = PageServer(), HandClock()
    async with serving(pages.handle) as url:
        pass
    reader = LoadReader(url, clock)
    async with a_client() as client:
        pauses = []
        for _ in range(8):
            assert await reader.read(client) is None
            began = clock.now
            while not reader.due:
                clock.now += 1.0
            pauses.append(clock.now - began)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]


@pytest.mark.uvloop
async def test_a_server_that_takes_long_to_tell_is_asked_less_often() -> None:
    clock = HandClock()

    def slowly(connection: Connection, _: ReceivedRequest) -> None:
        clock.now += 0.5
        connection.answer(200, VLLM.encode())

    async with serving(slowly) as url, a_client() as client:
        reader = LoadReader(url, clock)
        assert await reader.read(client) == ServerLoad(5, 8)
        clock.now += 9.0
        assert not reader.due
        clock.now += 1.0
        assert reader.due


@pytest.mark.uvloop
async def test_a_server_that_never_answers_is_left_after_a_while() -> None:
    async with serving(lambda connection, _: connection.hang()) as url, a_client() as client:
        reader = LoadReader(url, HandClock())
        async with asyncio.timeout(60):
            assert await reader.read(client) is None
        assert not reader.due


@pytest.mark.uvloop
async def test_an_upstream_is_asked_only_while_requests_are_in_flight_and_with_their_key() -> None:
    pages, clock = PageServer(), HandClock()
    async with serving(pages.handle) as url:
        upstreams = Upstreams(timing=Timing(clock=clock), environ={"KEY": "secret"}, concurrency=AUTO)
        upstream = upstreams.get(url)
        upstream.limit_of("m")
        upstream.route("/v1/chat/completions", "KEY")
        await upstreams.read_loads()
        assert not pages.requests, "nothing is in flight"
        upstream.sent[1] = clock.now
        for _ in range(2):
            await upstreams.read_loads()
        assert [request.authorization for request in pages.requests] == [b"Bearer secret"]
        assert upstream.server_load == ServerLoad(5, 8)
        clock.now += 1.0
        pages.status = 404
        await upstreams.read_loads()
        assert upstream.server_load is None
        await upstreams.close()


@pytest.mark.uvloop
async def test_an_upstream_is_not_asked_if_it_must_not_or_if_its_limit_would_not_follow() -> None:
    pages = PageServer()
    async with serving(pages.handle) as url:
        upstreams = Upstreams(timing=Timing(clock=HandClock()), concurrency=AUTO)
        off, fixed = upstreams.get(url), upstreams.get(f"{url}/fixed", 64)
        off.reports_load = False
        for upstream in (off, fixed):
            upstream.limit_of("m")
            upstream.route("/v1/chat/completions", None)
            upstream.sent[1] = 0.0
        await upstreams.read_loads()
        await upstreams.close()
    assert not pages.requests
