"""What the simulated upstream does beyond its capacity, proved over its sockets, on a clock that stands."""

from typing import Any

import pytest

from batchline.simulate import SimulateSettings
from batchline.simulate.capacity import CapacityStep, parsed_steps
from tests.support.simulated_client import chat, request
from tests.support.stepped_upstream import simulating

pytestmark = pytest.mark.uvloop


@pytest.mark.parametrize("status", [503, 429])
async def test_a_request_that_finds_the_queue_full_is_refused_at_once_and_not_executed(status: int) -> None:
    async with simulating(latency_ms=100, concurrency=2, max_queue=1, refuse_with=status) as upstream:
        served = [await upstream.send(str(number)) for number in range(3)]
        refused = await (await upstream.send("one too many", key="k")).answer()
        assert refused.status == status
        assert set(refused.json["error"]) == {"message", "type", "param", "code"}
        stats = await upstream.http.stats()
        assert (stats["in_flight"], stats["waiting"]) == (2, 1)
        upstream.timers.advance(0.2)
        assert [(await client.answer()).status for client in served] == [200, 200, 200]
        again = await upstream.send("one too many", key="k")
        upstream.timers.advance(0.1)
        assert (await again.answer()).status == 200, "a refused key was not executed"
        stats = await upstream.http.stats()
        assert (stats["executed"], stats["replays"], stats["refused_late"]) == (4, 0, 0)


async def test_without_a_queue_a_request_runs_at_once_or_is_refused() -> None:
    async with simulating(latency_ms=100, concurrency=1, max_queue=0) as upstream:
        first = await upstream.send()
        assert (await (await upstream.send()).answer()).status == 503
        upstream.timers.advance(0.1)
        assert (await first.answer()).status == 200


async def test_a_late_refusal_takes_a_slot_that_others_wait_for() -> None:
    settings = {"latency_ms": 100, "concurrency": 1, "max_queue": 0, "late_refusal_ms": 5000}
    async with simulating(**settings) as upstream:
        first = await upstream.send("first")
        refused = await upstream.send("refused", key="k")
        upstream.timers.advance(0.1)
        assert (await first.answer()).status == 200
        # It has a place, because what will be refused does not count; but the only slot is taken.
        second = await upstream.send("second")
        upstream.timers.advance(4.9)
        stats = await upstream.http.stats()
        assert (stats["in_flight"], stats["waiting"], stats["executed"]) == (1, 1, 1)
        upstream.timers.advance(0.1)
        assert (await refused.answer()).status == 503
        upstream.timers.advance(0.1)
        assert (await second.answer()).status == 200
        stats = await upstream.http.stats()
        assert (stats["executed"], stats["distinct_keys"], stats["refused_late"]) == (2, 0, 1)


async def test_a_duplicate_of_a_request_that_will_be_refused_late_gets_the_same_refusal() -> None:
    settings = {"latency_ms": 9000, "concurrency": 2, "max_queue": 0, "late_refusal_ms": 50}
    async with simulating(**settings, capacity_steps="1s:3") as upstream:
        for _ in range(2):
            await upstream.send()
        twice = [await upstream.send("late", key="k") for _ in range(2)]
        upstream.timers.advance(1.05)
        assert [(await client.answer()).status for client in twice] == [503, 503]


async def test_capacity_steps_count_from_the_first_request() -> None:
    async with simulating(latency_ms=60_000, concurrency=1, capacity_steps="10s:3") as upstream:
        upstream.timers.advance(100)
        for number in range(4):
            await upstream.send(str(number))
        upstream.timers.advance(9.9)
        assert (await upstream.http.stats())["in_flight"] == 1
        upstream.timers.advance(0.1)
        assert (await upstream.http.stats())["in_flight"] == 3


async def test_a_step_up_starts_what_waits_and_a_step_down_interrupts_nothing() -> None:
    async with simulating(latency_ms=1000, concurrency=1, capacity_steps="100ms:3,200ms:1") as upstream:
        for number in range(4):
            await upstream.send(str(number))
        counts = []
        for seconds in (0.05, 0.1, 0.1, 0.9, 1.0):
            upstream.timers.advance(seconds)
            stats = await upstream.http.stats()
            counts.append((stats["in_flight"], stats["waiting"], stats["executed"]))
        assert counts == [(1, 3, 0), (3, 1, 0), (3, 1, 0), (1, 0, 3), (0, 0, 4)]


async def test_no_request_runs_while_the_capacity_is_zero() -> None:
    async with simulating(concurrency=1, max_queue=2, capacity_steps="1s:0,2s:1") as upstream:
        assert (await (await upstream.send()).answer()).status == 200
        upstream.timers.advance(1)
        waiting = [await upstream.send(str(number)) for number in range(2)]
        assert (await (await upstream.send()).answer()).status == 503
        upstream.timers.advance(1)
        assert [(await client.answer()).status for client in waiting] == [200, 200]


async def test_reset_starts_the_time_of_the_steps_anew() -> None:
    async with simulating(latency_ms=100, concurrency=1, capacity_steps="1s:2") as upstream:
        await upstream.send()
        upstream.timers.advance(1)
        await upstream.http.get("/reset", "POST")
        upstream.received = 0
        for number in range(3):
            await upstream.send(str(number))
        assert (await upstream.http.stats())["in_flight"] == 1
        upstream.timers.advance(0.05)
        assert (await upstream.http.stats())["in_flight"] == 1


async def test_a_long_queue_of_requests_without_latency_starts_at_once() -> None:
    async with simulating(concurrency=1, capacity_steps="1s:0,2s:1") as upstream:
        await (await upstream.send()).answer()
        upstream.timers.advance(1)
        clients = [await upstream.http.connect() for _ in range(1500)]
        for client in clients:
            client.send(request(chat()))
        await upstream.http.until_received(1501)
        upstream.timers.advance(1)
        assert {(await client.answer()).status for client in clients} == {200}


@pytest.mark.parametrize(
    ("server", "lines"),
    [
        ("vllm", ['vllm:num_requests_running{engine="0",model_name="big"} 2.0', "vllm:num_requests_waiting"]),
        ("sglang", ['sglang:num_running_reqs{model_name="big",tp_rank="0"} 2.0', "sglang:num_queue_reqs"]),
        ("llamacpp", ["llamacpp:requests_processing 2", "llamacpp:requests_deferred 1"]),
    ],
)
async def test_metrics_show_what_runs_and_waits_with_the_names_of_a_server(
    server: str, lines: list[str]
) -> None:
    async with simulating(metrics=server, latency_ms=100, concurrency=2, models=("big",)) as upstream:
        for number in range(3):
            await upstream.send(str(number))
        page = await upstream.http.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        values = [line for line in page.body.decode().splitlines() if not line.startswith("#")]
        assert len(values) == 2
        assert values[0] == lines[0]
        assert values[1].startswith(lines[1])
        assert float(values[1].rpartition(" ")[2]) == 1


async def test_without_the_option_there_are_no_metrics() -> None:
    async with simulating() as upstream:
        assert (await upstream.http.get("/metrics")).status == 404


def test_steps_are_read_with_their_units() -> None:
    assert parsed_steps("500ms:16, 2s:0,1.5m:8") == (
        CapacityStep(0.5, 16),
        CapacityStep(2.0, 0),
        CapacityStep(90.0, 8),
    )
    assert parsed_steps("") == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"capacity_steps": "30:16", "concurrency": 1}, "30s:16,60s:4"),
        ({"capacity_steps": "2s:1,1s:2", "concurrency": 1}, "one after the other"),
        ({"capacity_steps": "2s:1"}, "needs concurrency"),
        ({"max_queue": 3}, "needs concurrency"),
        ({"max_queue": -1, "concurrency": 1}, "max_queue"),
        ({"late_refusal_ms": 3}, "needs max_queue"),
        ({"refuse_with": 500}, "429 or 503"),
        ({"metrics": "prometheus"}, "vllm, sglang, llamacpp"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_together_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SimulateSettings(**wrong)
