"""Verdicts on items whose upstream refuses some of them, is away behind a gateway, or crashes."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from batchline.model import Completed, Deferred, Failed, Ran, Retried
from tests.support.http_executor import an_executor, an_item, line_of
from tests.support.scripted_upstream import (
    an_upstream_that_refuses,
    answers,
    answers_well,
    hangs,
    says_and_closes,
    upstream_that,
)
from tests.support.waiting import eventually

BUSY = answers(503, b'{"error":{"message":"queue full"}}')


def never(_seconds: float) -> asyncio.Timeout:
    """For tests in which facts decide, however slow the machine is."""
    return asyncio.timeout(None)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_while_others_are_in_flight_is_no_attempt_a_few_times(status: int) -> None:
    async with upstream_that(hangs, answers(status)) as upstream, an_executor() as executor:
        company = asyncio.ensure_future(executor.run(an_item(upstream.url, line_no=99)))
        await upstream.arrived.wait()
        # Alone with its pace: what it waits for is not the subject.
        verdicts = []
        for _ in range(9):
            executor.upstreams.get(upstream.url).admission.pace = None
            verdicts.append(await executor.run(an_item(upstream.url, attempt=2)))
        company.cancel()
    assert [type(each) for each in verdicts] == [Deferred] * 8 + [Retried]


async def test_a_refusal_alone_is_an_attempt() -> None:
    async with upstream_that(BUSY) as upstream, an_executor() as executor:
        assert isinstance(await executor.run(an_item(upstream.url)), Retried)
        assert isinstance(await executor.run(an_item(upstream.url, line_no=2, attempt=3)), Deferred), (
            "nothing but gateway errors came back before"
        )


async def test_a_spared_line_waits_longer_each_time_and_as_long_as_the_upstream_asks() -> None:
    refused = answers(503, b"{}", b"Retry-After: 7")
    async with (
        upstream_that(hangs, BUSY, BUSY, BUSY, refused) as upstream,
        an_executor(random=lambda: 1.0) as executor,
    ):
        company = asyncio.ensure_future(executor.run(an_item(upstream.url, line_no=99)))
        await upstream.arrived.wait()
        verdicts = [await executor.run(an_item(upstream.url)) for _ in range(4)]
        company.cancel()
    assert [each.delay for each in verdicts if isinstance(each, Deferred)] == [0.5, 1.0, 2.0, 7.0]


async def test_connections_that_are_lost_together_are_a_crash_and_no_attempt() -> None:
    async with upstream_that(hangs) as upstream, an_executor(timer=never) as executor:
        items = [an_item(upstream.url, line_no=n, attempt=3) for n in range(1, 5)]
        items = [replace(item, claim=replace(item.claim, sender="one")) for item in items]
        running = [asyncio.ensure_future(executor.run(item)) for item in items]
        await eventually("all to arrive", lambda: len(upstream.requests) == 4)
        for connection in list(upstream.connections):
            connection.abort()
        verdicts = await asyncio.gather(*running)
    assert [
        each for each in verdicts if isinstance(each, Deferred) and each.crashed and each.sent_to == "one"
    ] == verdicts


async def test_one_lost_connection_while_others_are_answered_is_an_attempt() -> None:
    async with upstream_that(hangs) as upstream, an_executor(timer=never) as executor:
        lost = asyncio.ensure_future(executor.run(an_item(upstream.url)))
        await eventually("it to arrive", lambda: upstream.requests)
        (first,) = upstream.connections
        others = [asyncio.ensure_future(executor.run(an_item(upstream.url, line_no=n))) for n in (2, 3)]
        await eventually("all to arrive", lambda: len(upstream.requests) == 3)
        first.abort()
        upstream.behaviours = [answers_well]
        while not lost.done():
            assert isinstance(await executor.run(an_item(upstream.url, line_no=4)), Completed)
        verdict = await lost
        for other in others:
            other.cancel()
    assert isinstance(verdict, Retried)
    assert verdict.error_code == "connection_lost"


async def crash_alone(crashes: int) -> Ran:
    """One request is in flight when the upstream ends, and then nobody listens."""
    taken, url = an_upstream_that_refuses()
    async with AsyncExitStack() as open_until_here, an_executor() as executor:
        upstream = await open_until_here.enter_async_context(upstream_that(hangs, sock=taken))
        item = an_item(url)
        item = replace(item, claim=replace(item.claim, crashes=crashes))
        running = asyncio.ensure_future(executor.run(item))
        await upstream.arrived.wait()
        await open_until_here.aclose()
        return await running


@pytest.mark.parametrize("crashes", [0, 1, 2])
async def test_one_request_that_is_lost_before_the_upstream_is_unreachable_is_a_crash(crashes: int) -> None:
    verdict = await crash_alone(crashes)
    assert isinstance(verdict, Deferred)
    assert verdict.crashed
    assert verdict.delay > 0


async def test_a_line_that_was_alone_at_two_crashes_fails() -> None:
    verdict = await crash_alone(3)
    assert isinstance(verdict, Failed)
    assert line_of(verdict)["error"] == {
        "code": "upstream_crashed",
        "message": (
            "The upstream crashed 4 times while it had this line,"
            " the last 2 times while it had no other line of this worker."
        ),
    }


async def test_a_lost_connection_alone_is_an_attempt_if_the_upstream_is_there() -> None:
    async with upstream_that(says_and_closes(b""), answers(404)) as upstream, an_executor() as executor:
        assert isinstance(await executor.run(an_item(upstream.url)), Retried)
        assert [each.path for each in upstream.requests[1:]] == ["/v1/models"]
        assert executor.upstreams.get(upstream.url).available


async def test_an_engine_that_dies_under_its_server_is_a_crash() -> None:
    """It answers 500 to all that is in flight, and a gateway says afterwards that nobody is there."""
    async with upstream_that(answers_well, hangs) as upstream, an_executor(timer=never) as executor:
        assert isinstance(await executor.run(an_item(upstream.url)), Completed)
        running = [asyncio.ensure_future(executor.run(an_item(upstream.url, line_no=n))) for n in (1, 2)]
        await eventually("both to arrive", lambda: len(upstream.requests) == 3)
        upstream.behaviours = [answers(502)]
        for connection in upstream.connections:
            answers(500, b'{"error":{"message":"EngineDeadError"}}')(connection)
        verdicts = await asyncio.gather(*running)
        assert not executor.upstreams.get(upstream.url).available
    assert all(isinstance(each, Deferred) and each.crashed for each in verdicts)


async def test_an_upstream_that_answers_500_to_everything_is_there() -> None:
    async with upstream_that(answers(500)) as upstream, an_executor() as executor:
        verdicts = await asyncio.gather(
            *(executor.run(an_item(upstream.url, line_no=n)) for n in range(1, 9))
        )
        assert all(isinstance(each, Retried) and each.error_code == "http_500" for each in verdicts)
        assert executor.upstreams.get(upstream.url).available


async def test_an_open_breaker_defers_and_closes_with_the_first_answer() -> None:
    time = 0.0

    def at_once(_seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(0)

    async with upstream_that(BUSY) as upstream, an_executor(clock=lambda: time, timer=at_once) as executor:
        known = executor.upstreams.get(upstream.url)
        for number in range(1, 20):
            await executor.run(an_item(upstream.url, line_no=number))
            time += 0.5
            if not known.available:
                break
        assert not known.available
        upstream.behaviours = [answers_well]
        assert isinstance(await executor.run(an_item(upstream.url)), Completed)
        assert known.available
        assert known.outage is None
