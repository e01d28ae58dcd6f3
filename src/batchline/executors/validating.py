"""Runs items whose answers must meet the rules of their batch.

An answer that does not is an attempt that failed: the next one tells the model its last answer and what is
wrong with it. Both are stored with the attempt, so any worker can ask again, also after a crash. If the last
attempt fails so, the line fails with the code `invalid_output`, and keeps its last answer.

The schema is sent as `response_format` too. An upstream that refuses this is asked without it from then on.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from batchline.batches.answers import AnswerCheck, InvalidAnswerSchema, texts_of
from batchline.batches.output import NotJson, failed_line, invalid_line, read_invalid, response_body
from batchline.executors.checked_request import CheckedRequest, Correction
from batchline.executors.executor import Executor, Fence
from batchline.model import AnswerRules, Completed, Deferred, Failed, Item, Ran, Retry
from batchline.model.answer_rules import INVALID_OUTPUT
from batchline.model.failure import MAX_MESSAGE, error_of_line

# Larger answers are checked in a thread.
_MAX_ON_LOOP = 64 * 1024
# A larger answer is not sent back to the model: the problem must do.
_MAX_SENT_BACK = 64 * 1024
_MAX_RULES = 100
_UNREADABLE_DELAY = 1.0

_log = structlog.get_logger("batchline.answers")


class InvalidAnswers(Protocol):
    async def last(self, item: Item) -> bytes | None:
        """The line of the item's last answer that did not meet the rules; None if there is none. Raises
        InvalidAnswersUnavailable."""
        ...


class InvalidAnswersUnavailable(Exception):
    """They cannot be read now."""


class ValidatingExecutor:
    """Passes items on. Those of batches with rules are asked for, and their answers checked, as these say."""

    def __init__(self, executor: Executor, invalid_answers: InvalidAnswers) -> None:
        self._executor = executor
        self._invalid_answers = invalid_answers
        self._checks: dict[bytes, AnswerCheck] = {}
        # Upstreams and models that do not take a response_format.
        self._without_format: set[tuple[str | None, str]] = set()

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: each item would pay for one more.
        rules = item.claim.settings.answers
        return self._executor.run(item) if rules is None else self._checked(item, rules)

    def fenced_by(self, fence: Fence) -> None:
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

    async def _checked(self, item: Item, rules: AnswerRules) -> Ran:
        try:
            check = self._check(rules)
        except InvalidAnswerSchema as error:
            return Failed(item, failed_line(item, "invalid_schema", str(error)))
        try:
            correction = await self._correction(item)
        except InvalidAnswersUnavailable:
            return Deferred(item, _UNREADABLE_DELAY)
        formatted = rules.schema is not None and _served_by(item) not in self._without_format
        request = CheckedRequest(item.claim.url, rules.schema if formatted else None, correction)
        sent = replace(item, body=request.body(item.body))
        ran = await self._executor.run(sent)
        if isinstance(ran, Completed):
            return await self._judged(item, check, ran)
        if formatted and sent.body != item.body and isinstance(ran, Failed):
            return self._without(item, ran)
        return ran

    def _check(self, rules: AnswerRules) -> AnswerCheck:
        """Made once for all items of a batch: a claim has a copy of its own of the rules."""
        key = msgspec.json.encode(rules)
        check = self._checks.get(key)
        if check is None:
            if len(self._checks) >= _MAX_RULES:
                self._checks.clear()
            check = self._checks[key] = AnswerCheck(rules)
        return check

    async def _correction(self, item: Item) -> Correction | None:
        if item.claim.attempt == 1:
            return None
        line = await self._invalid_answers.last(item)
        if line is None:
            return None
        try:
            problem, body = read_invalid(line)
            texts = texts_of(body) if len(body) <= _MAX_SENT_BACK else []
        except (NotJson, RecursionError):
            return None
        return Correction(texts[0].text if texts else None, problem)

    async def _judged(self, item: Item, check: AnswerCheck, ran: Completed) -> Ran:
        body = response_body(ran.output)
        judge = partial(check.problem, body)
        problem = judge() if len(body) <= _MAX_ON_LOOP else await asyncio.to_thread(judge)
        if problem is None:
            return ran
        line = invalid_line(ran.output, INVALID_OUTPUT, problem[:MAX_MESSAGE])
        if item.claim.attempts_left:
            return Retry(item, INVALID_OUTPUT, problem[:MAX_MESSAGE], 0.0, ran.usage, line)
        return Failed(item, line, usage=ran.usage)

    def _without(self, item: Item, ran: Failed) -> Ran:
        """Another attempt if the upstream has refused the format, and one is left."""
        code, message = error_of_line(ran.output, ran.status_code)
        refused = ran.status_code in (400, 422) and "response_format" in message.replace(
            "text.format", "response_format"
        )
        if not refused:
            return ran
        upstream, model = served_by = _served_by(item)
        if served_by not in self._without_format:
            self._without_format.add(served_by)
            _log.warning(
                "the upstream takes no response_format; asking without it", upstream=upstream, model=model
            )
        if item.claim.attempts_left:
            return Retry(item, code, message[:MAX_MESSAGE], 0.0, ran.usage)
        return ran


def _served_by(item: Item) -> tuple[str | None, str]:
    return item.claim.settings.upstream, item.claim.model
