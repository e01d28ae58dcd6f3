"""Answers of chat completions, completions and responses: their texts, and whether they meet rules."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError

from batchline.model.answer_rules import AnswerRules

# The endpoints whose answers have texts.
CHECKED_ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})

_MAX_PROBLEMS = 3
_MAX_QUOTED = 200
# A reader of the message needs the place and the reason, not a large value.
_MAX_REASON = 200


class InvalidAnswerSchema(ValueError):
    """The user's schema is not valid. The message is for a person."""


class AnswerText(msgspec.Struct, frozen=True):
    """One of the texts that an answer offers. What is None, the answer does not have."""

    text: str | None
    refusal: str | None = None
    finish_reason: str | None = None
    # It calls a tool, and has no text.
    calls_tool: bool = False


def texts_of(body: bytes) -> list[AnswerText]:
    """The texts of an answer, one for each choice. Empty if it has none, as that of embeddings."""
    answer = msgspec.json.decode(body)
    if isinstance(choices := _field(answer, "choices"), list):
        return [_of_choice(choice) for choice in choices]
    if isinstance(output := _field(answer, "output"), list):
        return [_of_response(answer, output)]
    return []


def _of_choice(choice: Any) -> AnswerText:
    message = _field(choice, "message")
    text = _field(choice, "text") if message is None else _field(message, "content")
    return AnswerText(
        _text(text),
        refusal=_text(_field(message, "refusal")),
        finish_reason=_text(_field(choice, "finish_reason")),
        calls_tool=bool(_field(message, "tool_calls") or _field(message, "function_call")),
    )


def _of_response(answer: Any, output: list[Any]) -> AnswerText:
    contents = [_field(item, "content") for item in output]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    texts = [text for part in parts if (text := _text(_field(part, "text"))) is not None]
    refusals = [text for part in parts if (text := _text(_field(part, "refusal"))) is not None]
    return AnswerText(
        "".join(texts) if texts else None,
        refusal="".join(refusals) or None,
        finish_reason=_text(_field(answer, "status")),
        calls_tool=any(_field(item, "type") == "function_call" for item in output),
    )


class AnswerCheck:
    """The rules of a batch, ready to be applied. Raises InvalidAnswerSchema."""

    def __init__(self, rules: AnswerRules) -> None:
        self._rules = rules
        self._validator = None if rules.schema is None else _validator(rules.schema)

    def problem(self, body: bytes) -> str | None:
        """What is wrong with the answer, for the model and for people; None if it meets the rules."""
        try:
            texts = texts_of(body)
        except RecursionError:
            return "The answer is nested too deeply."
        if not texts:
            return "The answer has no text."
        return next((problem for each in texts if (problem := self._of_text(each)) is not None), None)

    def _of_text(self, answer: AnswerText) -> str | None:
        if answer.refusal:
            return f"The answer is a refusal: {_quoted(answer.refusal)}"
        wanted = self._rules.finish_reasons
        if wanted and answer.finish_reason not in wanted:
            return f'The finish_reason is "{answer.finish_reason}", and must be {_alternatives(wanted)}.'
        if not (answer.text or "").strip():
            # A call of a tool is an answer, except if its text must meet a schema.
            called = answer.calls_tool and self._validator is None
            return None if called else "The answer is empty."
        return None if self._validator is None else _against(self._validator, answer.text or "")


def _against(validator: Draft202012Validator, text: str) -> str | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"The answer is not JSON: {error}. Answer with JSON only, without a code block."
    if validator.is_valid(value):
        return None
    found = "; ".join(islice(_reasons(validator, value), _MAX_PROBLEMS))
    return f"The answer does not match the schema: {found}."


def _reasons(validator: Draft202012Validator, value: Any) -> Iterator[str]:
    for error in validator.iter_errors(value):
        where = "".join(f"/{part}" for part in error.instance_path)
        yield f"{f'at {where}: ' if where else ''}{_cut(error.message, _MAX_REASON)}"


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    # Patterns run in linear time, and references to other documents are not fetched.
    try:
        return Draft202012Validator(dict(schema), offline=True, pattern_options=RegexOptions())
    except (ValidationError, ValueError) as error:
        raise InvalidAnswerSchema(_cut(str(error).splitlines()[0], _MAX_REASON)) from None


def _alternatives(values: tuple[str, ...]) -> str:
    return " or ".join(f'"{value}"' for value in values)


def _quoted(text: str) -> str:
    return f'"{_cut(" ".join(text.split()), _MAX_QUOTED)}"'


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
