"""Traces by real processes, sent to a real collector: one trace per line, whatever happens to its worker."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.traces.span import SpanAddress, read_traceparent
from tests.support.otlp_collector import CollectedSpan, Collector, collecting
from tests.support.processes import batchline, kill, logged, simulated, submit, working, write_requests
from tests.support.scripted_upstream import answers, answers_well, hangs, upstream_that
from tests.support.waiting import LIMIT, eventually

# `submit` asks for the list of models first.
NO_LIST = answers(404)
CALLER = SpanAddress(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def traced(collector: Collector, **more: str) -> dict[str, str]:
    """The environment of a process that sends its traces at once."""
    return {
        "BATCHLINE_TRACES_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "NO_PROXY": "127.0.0.1",
        **more,
    }


def of_line(collector: Collector, number: int) -> dict[str, list[CollectedSpan]]:
    """The spans of a line, all of one trace, by the first words of their names, in order."""
    spans = [each for each in collector.spans if each.attributes.get("batchline.line") == number]
    assert len({each.trace_id for each in spans}) == 1
    found: dict[str, list[CollectedSpan]] = {}
    for each in sorted(spans, key=lambda span: span.start):
        found.setdefault(each.name.split()[0], []).append(each)
    return found


def test_a_line_is_one_trace_from_its_submission_to_its_settle(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    with simulated("--latency", "0.05") as upstream:
        given = batchline(
            *("submit", str(inputs), "--upstream", upstream.url, "--json", "--database", database_url),
            *("--data-dir", str(tmp_path / "data")),
            **traced(collector, TRACEPARENT=str(CALLER)),
        )
        assert given.returncode == 0, given.stderr
        batch_id = json.loads(given.stdout)["id"]
        done = batchline(
            *("worker", "--drain", "--database", database_url, "--data-dir", str(tmp_path / "data")),
            **traced(collector),
        )
    assert done.returncode == 0, done.stderr
    (submitted,) = collector.named("submit")
    assert (submitted.trace_id, submitted.parent_id) == (f"{CALLER.trace_id:032x}", f"{CALLER.span_id:016x}")
    assert submitted.attributes == {"batchline.batch.id": batch_id}
    (finalized,) = collector.named("finalize")
    assert (finalized.trace_id, finalized.parent_id) == (submitted.trace_id, submitted.span_id)
    assert finalized.attributes["batchline.batch.completed"] == 3
    for number in (1, 2, 3):
        spans = of_line(collector, number)
        assert {name: len(each) for name, each in spans.items()} == dict.fromkeys(
            ("line", "claim", "chat", "settle"), 1
        )
        (line,), (claim,), (chat,), (settle,) = (spans[name] for name in ("line", "claim", "chat", "settle"))
        assert line.parent_id == ""
        assert {each.parent_id for each in (claim, chat, settle)} == {line.span_id}
        assert line.links == ((submitted.trace_id, submitted.span_id),)
        # The line's life begins with its submission. Its id has milliseconds.
        assert submitted.start // 10**6 <= line.start // 10**6 <= submitted.end // 10**6
        assert line.start <= claim.start <= claim.end <= chat.start <= chat.end <= settle.start
        assert settle.end <= line.end + 10**6
        assert chat.start < chat.end
        assert line.attributes["batchline.outcome"] == settle.attributes["batchline.outcome"] == "completed"
        assert {each.attributes["batchline.batch.id"] for each in (line, claim, chat, settle)} == {batch_id}
    assert len({each.trace_id for each in collector.named("line")}) == 3


def test_a_request_has_the_attributes_of_the_conventions(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    body = {"model": "sim-small", "messages": [], "max_tokens": 5, "temperature": 1, "seed": 7, "n": 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    with simulated() as upstream:
        done = batchline(
            *("run", str(tmp_path / "in.jsonl"), "--upstream", upstream.url, "--database", database_url),
            *("--data-dir", str(tmp_path / "data")),
            **traced(collector, OTEL_SERVICE_NAME="batches", OTEL_EXPORTER_OTLP_HEADERS="x-key=collector"),
        )
    assert done.returncode == 0, done.stderr
    (chat,) = collector.named("chat")
    assert chat.name == "chat sim-small"
    assert chat.kind == "client"
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "sim-small",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.seed": 7,
        "gen_ai.response.model": "sim-small",
        "gen_ai.response.finish_reasons": ["length"],
        "openai.api.type": "chat_completions",
        "server.address": "127.0.0.1",
        "server.port": int(upstream.url.rpartition(":")[2]),
        "http.response.status_code": 200,
        "batchline.line": 1,
        "batchline.ordinal": 0,
        "batchline.attempt": 1,
    }
    assert {name: chat.attributes.get(name) for name in wanted} == wanted
    assert chat.attributes["gen_ai.usage.input_tokens"] >= 0
    assert chat.attributes["gen_ai.usage.output_tokens"] > 0
    assert "gen_ai.request.choice.count" not in chat.attributes
    assert chat.resource["service.name"] == "batches"
    assert {each["x-key"] for each in collector.headers} == {"collector"}


async def test_after_kill_9_the_next_worker_goes_on_in_the_same_trace(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    async with upstream_that(NO_LIST, hangs, answers_well) as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        await asyncio.to_thread(submit, inputs, upstream.url, *location)
        with working(database_url, tmp_path / "data", **traced(collector)) as killed:
            await eventually(
                "a request of the first worker, and its claim",
                lambda: len(upstream.requests) == 2 and collector.named("claim"),
            )
            await asyncio.to_thread(kill, killed, signal.SIGKILL)
        second = await asyncio.to_thread(batchline, "worker", "--drain", *location, **traced(collector))
        assert second.returncode == 0, second.stderr
        _, *sent = upstream.requests
        assert len({request.headers["idempotency-key"] for request in sent}) == 1
        assert len(sent) == 2
    spans = of_line(collector, 1)
    first, again = spans["claim"]
    assert first.resource["service.instance.id"] != again.resource["service.instance.id"]
    (line,), (chat,), (settle,) = spans["line"], spans["chat"], spans["settle"]
    assert {each.parent_id for each in (first, again, chat, settle)} == {line.span_id}
    # The batch was submitted without traces: its id tells when.
    assert line.start <= first.start
    assert line.links == ()
    assert (first.attributes["batchline.attempt"], chat.attributes["batchline.attempt"]) == (1, 1)


async def test_a_retry_is_in_the_same_trace(database_url: str, tmp_path: Path, collector: Collector) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    async with upstream_that(NO_LIST, answers(503, b"busy"), answers_well) as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        await asyncio.to_thread(submit, inputs, upstream.url, *location)
        done = await asyncio.to_thread(batchline, "worker", "--drain", *location, **traced(collector))
        assert done.returncode == 0, done.stderr
    spans = of_line(collector, 1)
    assert [each.attributes["batchline.attempt"] for each in spans["claim"]] == [1, 2]
    failed, answered = spans["chat"]
    assert failed.failed
    assert failed.attributes["error.type"] == "503"
    assert failed.attributes["http.response.status_code"] == 503
    assert not answered.failed
    assert [each.attributes["batchline.outcome"] for each in spans["settle"]] == ["retry", "completed"]
    assert spans["settle"][0].attributes["batchline.delay"] > 0
    (line,) = spans["line"]
    assert not line.failed
    assert line.attributes["batchline.attempt"] == 2
    assert {each.parent_id for name in ("claim", "chat", "settle") for each in spans[name]} == {line.span_id}


async def test_a_line_that_fails_says_so_by_its_code(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    async with upstream_that(NO_LIST, answers(400, b'{"error":{"message":"no","code":"bad"}}')) as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        await asyncio.to_thread(submit, inputs, upstream.url, *location)
        await asyncio.to_thread(batchline, "worker", "--drain", *location, **traced(collector))
    spans = of_line(collector, 1)
    (line,), (chat,) = spans["line"], spans["chat"]
    assert line.failed
    assert chat.failed
    assert line.attributes["error.type"] == chat.attributes["error.type"] == "400"
    assert line.attributes["batchline.outcome"] == "failed"


async def test_a_retried_batch_continues_the_traces_of_its_lines(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    async with upstream_that(NO_LIST, answers(400, b"{}"), answers_well) as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        batch = await asyncio.to_thread(submit, inputs, upstream.url, *location)
        await asyncio.to_thread(batchline, "worker", "--drain", *location, **traced(collector))
        retried = await asyncio.to_thread(batchline, "retry", batch, *location)
        assert retried.returncode == 0, retried.stderr
        await asyncio.to_thread(batchline, "worker", "--drain", *location, **traced(collector))
    spans = of_line(collector, 1)
    first, again = spans["line"]
    assert (first.failed, again.failed) == (True, False)
    assert (first.parent_id, again.parent_id) == ("", first.span_id)
    assert [each.parent_id for each in spans["chat"]] == [first.span_id, again.span_id]


@pytest.mark.parametrize("chosen", [True, False])
async def test_only_an_upstream_that_is_chosen_gets_the_header(
    database_url: str, tmp_path: Path, collector: Collector, chosen: bool
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    async with upstream_that(NO_LIST, answers_well) as upstream:
        location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
        named = f"{upstream.url}/" if chosen else "http://127.0.0.1:9/v1"
        await asyncio.to_thread(submit, inputs, upstream.url, *location)
        await asyncio.to_thread(
            batchline,
            *("worker", "--drain", *location),
            **traced(collector, BATCHLINE_TRACES_HEADERS_TO=named),
        )
        (sent,) = [each.headers for each in upstream.requests if each.method == "POST"]
    (chat,) = of_line(collector, 1)["chat"]
    address = read_traceparent(sent.get("traceparent"))
    if chosen:
        assert address is not None
        assert (f"{address.trace_id:032x}", f"{address.span_id:016x}") == (chat.trace_id, chat.span_id)
    else:
        assert address is None
        assert "traceparent" not in sent


def test_a_sample_of_a_large_batch_is_traced(database_url: str, tmp_path: Path, collector: Collector) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2000)
    with simulated() as upstream:
        done = batchline(
            *("run", str(inputs), "--upstream", upstream.url, "--database", database_url),
            *("--data-dir", str(tmp_path / "data")),
            **traced(collector, BATCHLINE_TRACES_FIRST="3", BATCHLINE_TRACES_SAMPLE="0.01"),
        )
    assert done.returncode == 0, done.stderr
    numbers = sorted(each.attributes["batchline.line"] for each in collector.named("line"))
    assert numbers[:3] == [1, 2, 3]
    assert 18 <= len(numbers) <= 25
    # They are spread over the whole batch.
    gaps = [later - earlier for earlier, later in zip(numbers[2:], [*numbers[3:], 2000], strict=True)]
    assert max(gaps) < 300


def test_a_collector_that_does_not_answer_delays_no_line(database_url: str, tmp_path: Path) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with (
        simulated() as upstream,
        logged(
            tmp_path / "log",
            *("run", str(inputs), "--upstream", upstream.url, "--database", database_url),
            *("--data-dir", str(tmp_path / "data")),
            BATCHLINE_TRACES_ENDPOINT="http://127.0.0.1:9",
            OTEL_BSP_SCHEDULE_DELAY="10",
            NO_PROXY="127.0.0.1",
        ) as process,
    ):
        process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "traces cannot be sent" in (tmp_path / "log").read_text()
