"""Items whose answers must meet rules: which verdict each answer gets, and what is sent."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from batchline.batches.output import answered_line
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
    Retry,
    RunSettings,
    Usage,
)
from batchline.model.failure import error_of_line

SCHEMA = {"type": "object", "required": ["label"]}
USAGE = Usage(3, 0, 5, 0)
BODY = b'{"model":"m","messages":[{"role":"user","content":"?"}]}'


def answer(content: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]}).encode()


class Upstream(Executor):
    """Answers with these, one after the other: a text, or a status and a message."""

    def __init__(self, *answers: str | tuple[int, str]) -> None:
        self._answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    async def run(self, item: Item) -> Ran:
        self.bodies.append(json.loads(item.body))
        given = self._answers.pop(0)
        if isinstance(given, str):
            return Completed(item, 200, answered_line(item, 200, "r", answer(given)), USAGE)
        status, message = given
        body = json.dumps({"error": {"message": message}}).encode()
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


def an_item(attempt: int = 1, rules: AnswerRules | None = None, upstream: str = "http://a") -> Item:
    settings = RunSettings(upstream=upstream, max_attempts=3, answers=rules or AnswerRules(schema=SCHEMA))
    claim = Claim(1, 1, UUID(int=1), attempt, None, 1, "/v1/chat/completions", "m", "m", 60.0, settings)
    return Item(claim, 0, 1, b"q-1", BODY)


async def run_all(upstream: Upstream, items: Sequence[Item], kept: Kept | None = None) -> list[Ran]:
    executor = ValidatingExecutor(upstream, kept or Kept())
    return [await executor.run(item) for item in items]


async def test_a_good_answer_is_passed_on_unchanged() -> None:
    (ran,) = await run_all(Upstream('{"label": 1}'), [an_item()])
    assert isinstance(ran, Completed)
    assert ran.usage == USAGE


async def test_a_bad_answer_is_asked_for_again_and_its_tokens_are_counted() -> None:
    (ran,) = await run_all(Upstream("spam"), [an_item()])
    assert isinstance(ran, Retry)
    assert (ran.error_code, ran.delay, ran.usage) == ("invalid_output", 0.0, USAGE)
    kept = json.loads(ran.output)
    assert kept["response"]["body"] == json.loads(answer("spam"))
    assert kept["error"] == {"code": "invalid_output", "message": ran.message}


async def test_the_next_attempt_tells_what_was_wrong() -> None:
    upstream = Upstream("spam", '{"label": 1}')
    (first,) = await run_all(upstream, [an_item()])
    assert isinstance(first, Retry)
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
    assert isinstance(first, Retry)
    assert first.error_code == "http_400"
    assert isinstance(second, Completed)
    assert isinstance(elsewhere, Completed)
    assert ["response_format" in body for body in upstream.bodies] == [True, False, True]


async def test_another_refusal_is_passed_on() -> None:
    (ran,) = await run_all(Upstream((400, "max_tokens is too large")), [an_item()])
    assert isinstance(ran, Failed)
    assert ran.status_code == 400
