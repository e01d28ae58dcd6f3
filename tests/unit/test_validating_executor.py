"""Items whose answers must meet rules: which verdict each answer gets, and what is sent."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from batchline.batches.output import answered_line, invalid_line
from batchline.executors.executor import Executor
from batchline.executors.validating import InvalidAnswersUnavailable, ValidatingExecutor
from batchline.model import (
    AnswerRules,
    Claim,
    Completed,
    Deferred,
    Failed,
    Item,
    Ran,
    Retried,
    RunSettings,
    Usage,
)
from batchline.model.failure import error_of_line

SCHEMA = '{"type":"object","required":["label"]}'
USAGE = Usage(3, 0, 5, 0)
BODY = b'{"model":"m","messages":[{"role":"user","content":"?"}]}'


def answer(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}).encode()


class Upstream(Executor):
    """Answers with these, one after the other: a text, or a status and an error."""

    def __init__(self, *answers: str | tuple[int, object]) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    async def run(self, item: Item) -> Ran:
        self.bodies.append(json.loads(item.body))
        given = self._answers.pop(0)
        if isinstance(given, str):
            return Completed(item, 200, answered_line(item, 200, "r", answer(given)), USAGE)
        status, error = given
        body = json.dumps({"error": {"message": error}} if isinstance(error, str) else error).encode()
        return Failed(item, answered_line(item, status, "r", body), status)


class Kept:
    """The invalid answers of earlier attempts."""

    def __init__(self, line: bytes | None = None, *, available: bool = True) -> None:
        self.line = line
        self._available = available

    async def last(self, item: Item) -> bytes | None:
        if not self._available:
            raise InvalidAnswersUnavailable
        return self.line


class Explainer:
    """Reasons, or none in time."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = list(reasons)
        self.calls = 0

    async def find(self, schema: str, text: str) -> list[str] | None:
        self.calls += 1
        return self._reasons or None


def an_item(
    attempt: int = 1, rules: AnswerRules | None = None, upstream: str = "http://a", body: bytes = BODY
) -> Item:
    settings = RunSettings(upstream=upstream, max_attempts=3, answers=rules or AnswerRules(schema=SCHEMA))
    claim = Claim(1, 1, UUID(int=1), attempt, None, 1, "/v1/chat/completions", "m", "m", 60.0, settings)
    return Item(claim, 0, 1, b"q-1", body)


async def run_all(upstream: Upstream, items: Sequence[Item], kept: Kept | None = None) -> list[Ran]:
    executor = ValidatingExecutor(upstream, kept or Kept(), Explainer("it is no label"))
    return [await executor.run(item) for item in items]


async def test_a_good_answer_is_passed_on_unchanged() -> None:
    (ran,) = await run_all(Upstream('{"label": 1}'), [an_item()])
    assert isinstance(ran, Completed)
    assert ran.usage == USAGE


async def test_a_bad_answer_is_asked_for_again_and_its_tokens_are_counted() -> None:
    (ran,) = await run_all(Upstream("spam"), [an_item()])
    assert isinstance(ran, Retried)
    assert (ran.error_code, ran.delay, ran.usage) == ("invalid_output", 0.0, USAGE)
    kept = json.loads(ran.output)
    assert kept["response"]["body"] == json.loads(answer("spam"))
    assert kept["error"] == {"code": "invalid_output", "message": ran.message}


async def test_the_next_attempt_tells_what_was_wrong() -> None:
    upstream = Upstream("spam", '{"label": 1}')
    (first,) = await run_all(upstream, [an_item()])
    assert isinstance(first, Retried)
    (second,) = await run_all(upstream, [an_item(2)], Kept(first.output))
    assert isinstance(second, Completed)
    _, said, complaint = upstream.bodies[1]["messages"]
    assert said == {"role": "assistant", "content": "spam"}
    assert first.message in complaint["content"]


async def test_the_last_bad_answer_fails_the_line_and_is_kept() -> None:
    (ran,) = await run_all(Upstream("spam"), [an_item(3)])
    assert isinstance(ran, Failed)
    assert ran.usage == USAGE
    line = json.loads(ran.output)
    assert list(line) == ["id", "custom_id", "error", "response"]
    assert line["custom_id"] == "q-1"
    assert line["error"]["code"] == "invalid_output"
    assert line["response"]["body"] == json.loads(answer("spam"))


async def test_the_error_of_a_large_line_is_known() -> None:
    (ran,) = await run_all(Upstream("x" * 200_000), [an_item(3)])
    assert isinstance(ran, Failed)
    code, message = error_of_line(ran.output, None)
    assert code == "invalid_output"
    assert message.startswith("The answer is not JSON")


async def test_a_kept_line_that_cannot_be_read_does_not_prevent_the_next_attempt() -> None:
    for line in (b"not JSON", b'{"response": null}'):
        (ran,) = await run_all(Upstream('{"label": 1}'), [an_item(2)], Kept(line))
        assert isinstance(ran, Completed)


async def test_an_item_waits_while_its_last_answer_cannot_be_read() -> None:
    (ran,) = await run_all(Upstream(), [an_item(2)], Kept(available=False))
    assert isinstance(ran, Deferred)
    assert ran.delay > 0


async def test_an_upstream_without_response_format_is_asked_without_it() -> None:
    refusal = (400, "Unrecognized request argument supplied: response_format")
    upstream = Upstream(refusal, '{"label": 1}', '{"label": 1}')
    first, second, elsewhere = await run_all(upstream, [an_item(), an_item(2), an_item(upstream="http://b")])
    assert isinstance(first, Retried)
    assert first.error_code == "http_400"
    assert isinstance(second, Completed)
    assert isinstance(elsewhere, Completed)
    assert ["response_format" in body for body in upstream.bodies] == [True, False, True]


async def test_another_refusal_is_passed_on() -> None:
    (ran,) = await run_all(Upstream((400, "max_tokens is too large")), [an_item()])
    assert isinstance(ran, Failed)
    assert ran.status_code == 400


@pytest.mark.parametrize(
    "error",
    [
        (400, "This model does not support response format `json_schema`."),
        (400, "The provided JSON schema contains features not supported by xgrammar."),
        (400, {"error": {"message": "Invalid value", "param": "response_format"}}),
        (422, {"detail": [{"loc": ["body", "response_format", "type"], "msg": "Input should be 'text'"}]}),
    ],
)
async def test_upstreams_refuse_a_format_in_many_ways(error: tuple[int, object]) -> None:
    upstream = Upstream(error, '{"label": 1}')
    first, second = await run_all(upstream, [an_item(), an_item(2)])
    assert isinstance(first, Retried)
    assert isinstance(second, Completed)


async def test_a_refusal_that_only_quotes_the_request_is_not_one_of_the_format() -> None:
    quoted = {"detail": [{"loc": ["body", "top_p"], "msg": "too large", "input": {"response_format": 1}}]}
    upstream = Upstream((422, quoted), '{"label": 1}')
    first, _ = await run_all(upstream, [an_item(), an_item()])
    assert isinstance(first, Failed)
    assert ["response_format" in body for body in upstream.bodies] == [True, True]


async def test_the_last_attempt_does_not_fail_because_of_the_format() -> None:
    upstream = Upstream((400, "no response_format"), '{"label": 1}')
    (ran,) = await run_all(upstream, [an_item(3)])
    assert isinstance(ran, Completed)
    assert ["response_format" in body for body in upstream.bodies] == [True, False]


async def test_the_last_attempt_is_not_sent_again_after_the_lease_is_lost() -> None:
    names = iter(["worker 1", "worker 2"])
    upstream = Upstream((400, "no response_format"))
    executor = ValidatingExecutor(upstream, Kept(), Explainer())
    executor.fenced_by(lambda: next(names))
    assert isinstance(await executor.run(an_item(3)), Deferred)


async def test_a_schema_that_is_refused_does_not_affect_other_schemas() -> None:
    upstream = Upstream((400, "Invalid schema for response_format"), '{"label": 1}', '{"label": 1}')
    other = AnswerRules(schema='{"required":["label"]}')
    await run_all(upstream, [an_item(), an_item(rules=other), an_item()])
    assert ["response_format" in body for body in upstream.bodies] == [True, True, False]


async def test_the_refusal_of_a_format_that_the_line_has_itself_is_its_own() -> None:
    own = b'{"model": "m", "messages": [], "response_format": {"type": "nonsense"}}'
    upstream = Upstream((400, "Invalid response_format"), '{"label": 1}')
    first, _ = await run_all(upstream, [an_item(body=own), an_item()])
    assert isinstance(first, Failed)
    assert "response_format" in upstream.bodies[1]


async def test_of_several_choices_the_wrong_one_is_sent_back() -> None:
    choices = [{"message": {"content": text}} for text in ('{"label": 1}', "wrong")]
    body = json.dumps({"choices": choices}).encode()
    line = invalid_line(answered_line(an_item(), 200, "r", body), "invalid_output", "It is not JSON.")
    upstream = Upstream('{"label": 1}')
    await run_all(upstream, [an_item(2)], Kept(line))
    assert upstream.bodies[0]["messages"][1] == {"role": "assistant", "content": "wrong"}


async def test_the_reasons_of_a_mismatch_are_added() -> None:
    (ran,) = await run_all(Upstream("{}"), [an_item()])
    assert isinstance(ran, Retried)
    assert ran.message == "The answer does not match the schema: it is no label."


async def test_reasons_that_take_too_long_are_not_looked_for_again_and_again() -> None:
    explainer = Explainer()
    executor = ValidatingExecutor(Upstream(*["{}"] * 9), Kept(), explainer)
    for _ in range(9):
        ran = await executor.run(an_item())
        assert isinstance(ran, Retried)
        assert ran.message == "The answer does not match the schema."
    assert explainer.calls == 5
