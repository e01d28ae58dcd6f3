"""Which lines are traced, under which ids, and what their spans say."""

import json
from itertools import pairwise
from uuid import UUID

import pytest
import structlog
from msgspec.structs import replace

from batchline.batches.output import failed_line
from batchline.config.settings import TraceSettings
from batchline.model import Completed, Deferred, Failed, Item, Retried, Usage, Verdict
from batchline.model.ids import milliseconds_of, new_id
from batchline.traces import conventions
from batchline.traces.lines import LineSampler, LineTracer
from batchline.traces.span import FinishedSpan, SpanAddress, derived, read_traceparent
from tests.support.http_executor import an_item

KNOWN = (0xE6C0A45A82220B92FE8BB9A96810A814, 0xE88FABB4917DEFD4)
ALL = TraceSettings(sample=1.0)


class Spans(list[FinishedSpan]):
    def add(self, span: FinishedSpan) -> None:
        self.append(span)


def claimed(item: Item, spans: Spans, settings: TraceSettings = ALL) -> tuple[LineTracer, Item]:
    tracer, items = LineTracer(spans, settings), [item]
    tracer.claimed(items, 1.0)
    return tracer, items[0]


def answered(item: Item, began: float = 2.0, ended: float = 3.0) -> Item:
    item.stamps.sent, item.stamps.answered = began, ended
    return item


def output_of(body: object, status: int = 200) -> bytes:
    return json.dumps({"response": {"status_code": status, "body": body}}).encode()


# --- Ids ---------------------------------------------------------------------------------------------------


def test_the_ids_of_a_line_are_the_same_in_every_process() -> None:
    batch = UUID(int=7)
    # A change of these ids would tear the traces of running batches apart.
    assert derived(batch, 1) == KNOWN
    ids = {derived(batch, number) for number in range(1000)} | {derived(UUID(int=8), 1)}
    assert len({trace for trace, _ in ids}) == len({span for _, span in ids}) == 1001


def test_a_line_that_runs_again_has_another_span_in_the_same_trace() -> None:
    trace, line = derived(UUID(int=7), 1)
    again = derived(UUID(int=7), 1, 3)
    assert again[0] == trace
    assert again[1] not in (line, derived(UUID(int=7), 1, 4)[1])


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n",
    ],
)
def test_a_traceparent_that_is_not_valid_is_ignored(text: str | None) -> None:
    assert read_traceparent(text) is None


@pytest.mark.parametrize(("flags", "sampled"), [("01", True), ("00", False), ("03", True)])
def test_a_traceparent_names_a_span(flags: str, sampled: bool) -> None:
    text = f"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}"
    found = read_traceparent(text)
    assert found == SpanAddress(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, sampled)
    assert read_traceparent(f"cc{text[2:]}-of-a-later-version") == found


# --- The sample --------------------------------------------------------------------------------------------


def test_the_sample_is_an_even_share_and_the_same_for_every_worker() -> None:
    lines = range(1, 100_001)
    batches = [new_id() for _ in range(5)]
    chosen = []
    for batch in batches:
        one, other = (LineSampler(TraceSettings(sample=0.01, first=0)) for _ in range(2))
        numbers = [line for line in lines if one.chooses(one.offset(batch), line)]
        assert numbers == [line for line in lines if other.chooses(other.offset(batch), line)]
        assert 990 <= len(numbers) <= 1010
        assert max(later - earlier for earlier, later in pairwise(numbers)) < 1000
        chosen.append(tuple(numbers))
    assert len(set(chosen)) == len(batches), "not the same lines of every batch"


def test_the_first_lines_are_traced_in_any_case() -> None:
    sampler = LineSampler(TraceSettings(sample=0.0, first=3))
    assert [line for line in range(1, 1000) if sampler.chooses(12345, line)] == [1, 2, 3]


def test_a_share_of_one_is_every_line() -> None:
    sampler = LineSampler(ALL)
    assert all(sampler.chooses(sampler.offset(new_id()), line) for line in range(1, 10_000))


def test_a_line_that_is_not_traced_makes_no_span() -> None:
    spans = Spans()
    item = an_item("http://h", line_no=5)
    tracer, same = claimed(item, spans, TraceSettings(sample=0.0, first=0))
    assert same is item
    tracer.stored([Completed(answered(same), 200, b"{}")], [], [])
    assert spans == []


# --- Spans -------------------------------------------------------------------------------------------------


def test_a_verdict_that_came_too_late_ends_no_line() -> None:
    spans = Spans()
    tracer, item = claimed(an_item("http://h"), spans)
    verdict: Verdict = Completed(answered(item), 200, b"{}")
    tracer.stored([verdict], [verdict], [])
    assert [span.name for span in spans] == ["claim", "chat m", "settle"]
    assert spans[-1].attributes["batchline.late"] is True


def test_a_verdict_that_an_earlier_settle_has_stored_ends_its_line() -> None:
    spans = Spans()
    tracer, item = claimed(an_item("http://h"), spans)
    verdict = Completed(answered(item), 200, b"{}")
    tracer.stored([verdict], [], [verdict])
    assert "line" in [span.name for span in spans]


def test_a_line_that_was_given_back_has_no_request() -> None:
    spans = Spans()
    tracer, item = claimed(an_item("http://h"), spans)
    tracer.stored([Deferred(item, 1.5)], [], [])
    assert [span.name for span in spans] == ["claim", "settle"]
    assert spans[1].attributes["batchline.outcome"] == "deferred"
    assert spans[1].attributes["batchline.delay"] == 1.5


def test_a_line_of_a_retried_batch_is_a_part_of_its_first_life() -> None:
    spans = Spans()
    item = an_item("http://h")
    tracer, item = claimed(replace(item, claim=replace(item.claim, attempts_before=2, attempt=3)), spans)
    tracer.stored([Completed(answered(item), 200, b"{}")], [], [])
    line = next(span for span in spans if span.name == "line")
    assert line.parent == SpanAddress(*derived(item.claim.batch_id, 1))
    assert line.address != line.parent
    assert {span.parent for span in spans if span is not line} == {line.address}


def test_a_line_begins_when_its_batch_was_submitted() -> None:
    spans, batch = Spans(), new_id()
    item = an_item("http://h")
    tracer, item = claimed(replace(item, claim=replace(item.claim, batch_id=batch)), spans)
    tracer.stored([Completed(answered(item), 200, b"{}")], [], [])
    line = next(span for span in spans if span.name == "line")
    began = milliseconds_of(batch)
    assert began is not None
    assert line.started == began * 1_000_000
    assert milliseconds_of(UUID("0af76519-16cd-43dd-8448-eb211c80319c")) is None


def test_a_mistake_in_a_trace_does_not_concern_the_line() -> None:
    class Broken(Spans):
        def add(self, span: FinishedSpan) -> None:
            raise LookupError("private")

    tracer, items = LineTracer(Broken(), ALL), [an_item("http://h")]
    with structlog.testing.capture_logs() as logs:
        tracer.claimed(items, 1.0)
        tracer.stored([Completed(answered(claimed(items[0], Spans())[1]), 200, b"{}")], [], [])
    assert [each["event"] for each in logs] == ["cannot trace claims", "cannot trace settles"]
    assert "private" not in logs[0]["exception"].splitlines()[-1]


# --- Attributes --------------------------------------------------------------------------------------------


def test_parameters_are_numbers_and_nothing_else() -> None:
    def of(body: bytes, url: str = "/v1/chat/completions") -> dict[str, int | float]:
        return conventions.request_parameters(replace(an_item("http://h", url=url), body=body))

    assert of(b'{"max_completion_tokens": 9, "top_p": 1, "n": 3, "messages": "secret"}') == {
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 3,
    }
    assert of(b'{"temperature": "hot", "seed": 1.5, "max_tokens": true, "n": 1}') == {}
    assert of(b'{"seed": 1%s}' % (b"0" * 30)) == {}
    assert of(b"[1]") == of(b"nonsense") == of(b'{"seed": 1, "x": "%s"}' % (b"x" * 70_000)) == {}
    assert of(b'{"seed": 1}', "/operations/vm_create") == {}


def test_names_that_are_no_names_are_left_out() -> None:
    body = {"id": "my prompt", "model": "a prompt\nquoted", "choices": [{"finish_reason": "you said: hello"}]}
    item = an_item("http://h")
    assert conventions.answer_attributes(Completed(item, 200, output_of(body))) == {
        "http.response.status_code": 200
    }
    named = replace(item, claim=replace(item.claim, model="what is the meaning of life"))
    assert conventions.request_name(named) == "chat"
    assert "gen_ai.request.model" not in conventions.request_attributes(named)


def test_an_answer_has_its_names_and_its_usage() -> None:
    body = {"id": "chatcmpl-1", "model": "org/m:7b@q4", "choices": [{"finish_reason": "stop"}] * 2}
    verdict = Completed(an_item("http://h"), 200, output_of(body), Usage(10, 4, 20, 5))
    assert conventions.answer_attributes(verdict) == {
        "http.response.status_code": 200,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "org/m:7b@q4",
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 5,
    }


def test_an_error_is_a_code_and_never_a_sentence() -> None:
    item = an_item("http://h")
    cases: list[tuple[Verdict, str | None]] = [
        (Completed(item, 200, b"{}"), None),
        (Retried(item, "http_429", "slow down", 1.0), "429"),
        (Retried(item, "timeout", "", 1.0), "timeout"),
        (Retried(item, "You said: hello", "", 1.0), "other"),
        (Failed(item, failed_line(item, "response_too_large", "…")), "response_too_large"),
        (Failed(item, output_of({"error": {"code": "You said: hello"}}, 400), 400), "400"),
    ]
    assert [conventions.error_type(verdict) for verdict, _ in cases] == [code for _, code in cases]
    status = conventions.answer_attributes(cases[1][0])["http.response.status_code"]
    assert status == 429


@pytest.mark.parametrize(
    ("upstream", "address", "port"),
    [
        ("https://user:secret@models.example/v1?key=secret", "models.example", 443),
        ("http://127.0.0.1:8000/v1", "127.0.0.1", 8000),
        ("http://[::1]:8000", "::1", 8000),
    ],
)
def test_of_an_upstream_only_host_and_port_are_told(upstream: str, address: str, port: int) -> None:
    _, item = claimed(an_item(upstream), Spans())
    assert item.trace is not None
    item.trace.upstream = upstream
    found = conventions.request_attributes(item)
    assert (found["server.address"], found["server.port"]) == (address, port)
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("/v1/chat/completions", "chat m"),
        ("/v1/responses", "chat m"),
        ("/v1/completions", "text_completion m"),
        ("/v1/embeddings", "embeddings m"),
        ("/operations/vm_create", "request"),
    ],
)
def test_a_request_is_named_by_its_endpoint(url: str, name: str) -> None:
    item = an_item("http://h", url=url)
    assert conventions.request_name(item) == name
    assert ("gen_ai.operation.name" in conventions.request_attributes(item)) is (name != "request")
    task = replace(item, claim=replace(item.claim, task_id="resp_1"))
    assert conventions.request_name(task) == "poll task"
