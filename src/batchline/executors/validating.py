"""Runs items whose answers must meet the rules of their batch.

An answer that does not is an attempt that failed: the next one tells the model its last answer and what is
wrong with it. Both are stored with the attempt, so any worker can ask again, also after a crash. If the last
attempt fails so, the line fails with the code `invalid_output`, and keeps its last answer.

The schema is sent as `response_format` too. If an upstream refuses it, later requests leave it out.
"""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from batchline.batches.answers import AnswerCheck, AnswerProblem, InvalidAnswerSchema, with_reasons
from batchline.batches.output import NotJson, failed_line, invalid_line, read_invalid, response_body
from batchline.executors.checked_request import AnswerFormat, Correction, checked_request, refuses_format
from batchline.executors.executor import Executor, Fence, no_fence
from batchline.model import AnswerRules, Completed, Deferred, Failed, Item, Ran, Retried
from batchline.model.answer_rules import INVALID_OUTPUT
from batchline.model.failure import MAX_MESSAGE, error_of_line

# Larger answers are checked in a thread.
_MAX_ON_LOOP = 64 * 1024
# A larger answer is not sent back to the model: the problem must do.
_MAX_SENT_BACK = 64 * 1024
_MAX_RULES = 100
# After so many answers for which it took too long, no more reasons are looked for.
_MAX_WITHOUT_REASONS = 5
_UNREADABLE_DELAY = 1.0

_log = structlog.get_logger("batchline.answers")


class InvalidAnswers(Protocol):
    async def last(self, item: Item) -> bytes | None:
        """The line of the item's last answer that did not meet the rules; None if there is none. Raises
        InvalidAnswersUnavailable."""
        ...


class InvalidAnswersUnavailable(Exception):
    """They cannot be read now."""


class Reasons(Protocol):
    async def find(self, schema: str, text: str) -> list[str] | None:
        """Why a text does not match; None if it takes too long to say."""
        ...


class _Applied:
    """The rules of some batches, and what is known of those who must meet them."""

    def __init__(self, rules: AnswerRules) -> None:
        self.check = AnswerCheck(rules)
        self.schema = rules.schema
        self.answer_format = None if rules.schema is None else AnswerFormat(rules.schema)
        # Upstreams and models that do not take this format. They may take that of another schema.
        self.without_format: set[tuple[str | None, str]] = set()
        self.without_reasons = 0

    def format_for(self, item: Item) -> AnswerFormat | None:
        return None if _served_by(item) in self.without_format else self.answer_format


class ValidatingExecutor:
    """Passes items on. Those of batches with rules are asked for, and their answers checked, as these say."""

    def __init__(self, executor: Executor, invalid_answers: InvalidAnswers, reasons: Reasons) -> None:
        self._executor = executor
        self._invalid_answers = invalid_answers
        self._reasons = reasons
        self._applied: dict[AnswerRules, _Applied] = {}
        self._fence: Fence = no_fence

    def run(self, item: Item) -> Coroutine[Any, Any, Ran]:
        # Not a coroutine itself: each item would pay for one more.
        rules = item.claim.settings.answers
        return self._executor.run(item) if rules is None else self._checked(item, rules)

    def fenced_by(self, fence: Fence) -> None:
        self._fence = fence
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

    async def _checked(self, item: Item, rules: AnswerRules) -> Ran:
        try:
            applied = self._apply(rules)
        except InvalidAnswerSchema as error:
            return Failed(item, failed_line(item, "invalid_schema", str(error)))
        try:
            correction = await self._correction(item, applied.check)
        except InvalidAnswersUnavailable:
            return Deferred(item, _UNREADABLE_DELAY)
        ran = await self._answer(item, applied, correction)
        return await self._judged(item, applied, ran) if isinstance(ran, Completed) else ran

    def _apply(self, rules: AnswerRules) -> _Applied:
        """Made once for all items of a batch: a claim has a copy of its own of the rules."""
        applied = self._applied.get(rules)
        if applied is None:
            if len(self._applied) >= _MAX_RULES:
                self._applied.clear()
            applied = self._applied[rules] = _Applied(rules)
        return applied

    async def _correction(self, item: Item, check: AnswerCheck) -> Correction | None:
        if item.claim.attempt == 1:
            return None
        line = await self._invalid_answers.last(item)
        if line is None:
            return None
        try:
            message, body = read_invalid(line)
        except NotJson:
            return None
        # Of several choices, the one with the problem.
        problem = check.problem(body) if len(body) <= _MAX_SENT_BACK else None
        return Correction(None if problem is None else problem.text, message)

    async def _answer(self, item: Item, applied: _Applied, correction: Correction | None) -> Ran:
        """The upstream's answer. If it refuses the format, this asks without it: in another attempt if one is
        left, else now, because the line is not to blame."""
        name, answer_format = self._fence(), applied.format_for(item)
        request = checked_request(item.claim.url, item.body, answer_format, correction)
        ran = await self._executor.run(replace(item, body=request.body))
        if not (request.formatted and isinstance(ran, Failed) and refuses_format(ran)):
            return ran
        _note_refusal(item, applied)
        if item.claim.attempts_left:
            code, message = error_of_line(ran.output, ran.status_code)
            return Retried(item, code, message[:MAX_MESSAGE], 0.0, ran.usage)
        if name is None or self._fence() != name:
            # The lease is lost, so another worker may be running it.
            return Deferred(item)
        request = checked_request(item.claim.url, item.body, None, correction)
        return await self._executor.run(replace(item, body=request.body))

    async def _judged(self, item: Item, applied: _Applied, ran: Completed) -> Ran:
        body = response_body(ran.output)
        judge = partial(applied.check.problem, body)
        problem = judge() if len(body) <= _MAX_ON_LOOP else await asyncio.to_thread(judge)
        if problem is None:
            return ran
        message = (await self._described(applied, problem))[:MAX_MESSAGE]
        line = invalid_line(ran.output, INVALID_OUTPUT, message)
        if item.claim.attempts_left:
            return Retried(item, INVALID_OUTPUT, message, 0.0, ran.usage, line)
        return Failed(item, line, usage=ran.usage)

    async def _described(self, applied: _Applied, problem: AnswerProblem) -> str:
        schema, text = applied.schema, problem.text
        given_up = applied.without_reasons >= _MAX_WITHOUT_REASONS
        if not problem.mismatch or schema is None or text is None or given_up:
            return problem.message
        reasons = await self._reasons.find(schema, text)
        applied.without_reasons += reasons is None
        return with_reasons(problem, reasons or [])


def _note_refusal(item: Item, applied: _Applied) -> None:
    upstream, model = served_by = _served_by(item)
    if served_by not in applied.without_format:
        applied.without_format.add(served_by)
        _log.warning(
            "the upstream does not take the schema as response_format; asking without it",
            upstream=upstream,
            model=model,
        )


def _served_by(item: Item) -> tuple[str | None, str]:
    return item.claim.settings.upstream, item.claim.model
