"""Answers of chat completions, completions and responses: their texts, and whether they meet rules."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError, ValidationErrorKind

from batchline.model.answer_rules import AnswerRules

# The endpoints whose answers have texts.
CHECKED_ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})

# More than any model writes. Decoded, a text may take thirty times its size.
_MAX_CHECKED = 2**20
_MAX_QUOTED = 200
_MAX_REASON = 200
# Parts of a schema with its references replaced. More take longer than a second, for each value of an answer.
_MAX_EXPANDED = 1_000_000
# Of each pattern of a schema, compiled.
_MAX_PATTERN = 2**20
# Parts that are text; a part without a type is, too. Not the model's thoughts.
_TEXT_PARTS = (None, "text", "output_text")


class InvalidAnswerSchema(ValueError):
    """The user's schema is not valid. The message is for a person."""


class AnswerText(msgspec.Struct, frozen=True):
    """One of the texts that an answer offers. What is None, the answer does not have."""

    text: str | None
    refusal: str | None = None
    finish_reason: str | None = None
    # It calls a tool, and has no text.
    calls_tool: bool = False


class AnswerProblem(msgspec.Struct, frozen=True):
    """What is wrong with an answer, for the model and for people."""

    message: str
    # The text that is wrong, if the answer has one.
    text: str | None = None
    # The text is JSON and does not match the schema. To say why may take long: see answer_reasons.
    mismatch: bool = False


# Only what is needed is decoded: an answer may have megabytes of other fields, such as logprobs.
class _Message(msgspec.Struct, gc=False):
    content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message | None = None
    text: Any = None
    finish_reason: Any = None


class _OutputItem(msgspec.Struct, gc=False):
    type: Any = None
    content: Any = None


class _AnswerBody(msgspec.Struct, gc=False):
    choices: list[_Choice | None] | None = None
    output: list[_OutputItem | None] | None = None
    status: Any = None


_NO_CHOICE, _NO_MESSAGE = _Choice(), _Message()
_decode_body = msgspec.json.Decoder(_AnswerBody).decode


def texts_of(body: bytes) -> list[AnswerText]:
    """The texts of an answer, one for each choice. Empty if it has none, as that of embeddings. Raises
    RecursionError."""
    try:
        answer = _decode_body(body)
    except msgspec.ValidationError:
        return []
    if answer.choices is not None:
        return [_of_choice(choice or _NO_CHOICE) for choice in answer.choices]
    if answer.output is not None:
        return [_of_response(answer.status, [item for item in answer.output if item is not None])]
    return []


def _of_choice(choice: _Choice) -> AnswerText:
    message = choice.message or _NO_MESSAGE
    return AnswerText(
        _content(choice.text if choice.message is None else message.content),
        refusal=_text(message.refusal),
        finish_reason=_text(choice.finish_reason),
        calls_tool=bool(message.tool_calls or message.function_call),
    )


def _of_response(status: Any, output: list[_OutputItem]) -> AnswerText:
    contents = [item.content for item in output if item.type in (None, "message")]
    texts = [text for content in contents if (text := _content(content)) is not None]
    refusals = [text for part in _parts(contents) if (text := _text(part.get("refusal"))) is not None]
    return AnswerText(
        "".join(texts) if texts else None,
        refusal="".join(refusals) or None,
        finish_reason=_text(status),
        calls_tool=any(item.type == "function_call" for item in output),
    )


def _content(content: Any) -> str | None:
    """A text, or the texts of a list of parts."""
    if not isinstance(content, list):
        return _text(content)
    parts = [part for part in _parts([content]) if part.get("type") in _TEXT_PARTS]
    texts = [text for part in parts if (text := _text(part.get("text"))) is not None]
    return "".join(texts) if texts else None


def _parts(contents: list[Any]) -> Iterator[dict[str, Any]]:
    lists = [content for content in contents if isinstance(content, list)]
    return (part for content in lists for part in content if isinstance(part, dict))


class AnswerCheck:
    """The rules of a batch, ready to be applied. Raises InvalidAnswerSchema."""

    def __init__(self, rules: AnswerRules) -> None:
        self._rules = rules
        self._validator = None if rules.schema is None else answer_validator(rules.schema)

    def problem(self, body: bytes) -> AnswerProblem | None:
        """None if the answer meets the rules."""
        try:
            texts = texts_of(body)
        except RecursionError:
            return AnswerProblem("The answer is nested too deeply.")
        if not texts:
            return AnswerProblem("The answer has no text.")
        return next((problem for each in texts if (problem := self._of_text(each)) is not None), None)

    def _of_text(self, answer: AnswerText) -> AnswerProblem | None:
        text, wanted = answer.text or "", self._rules.finish_reasons
        if answer.refusal:
            return AnswerProblem(f"The answer is a refusal: {_quoted(answer.refusal)}", text)
        if wanted and answer.finish_reason not in wanted:
            message = f'The finish_reason is "{answer.finish_reason}", and must be {_alternatives(wanted)}.'
            return AnswerProblem(message, text)
        if not text.strip():
            # A call of a tool is an answer, except if its text must meet a schema.
            called = answer.calls_tool and self._validator is None
            return None if called else AnswerProblem("The answer is empty.")
        return None if self._validator is None else _against(self._validator, text)


def _against(validator: Draft202012Validator, text: str) -> AnswerProblem | None:
    if len(text) > _MAX_CHECKED:
        return AnswerProblem(f"The answer has more than {_MAX_CHECKED:,} characters: too many to check it.")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f"The answer is not JSON: {error}. Answer with JSON only, without a code block."
        return AnswerProblem(message, text)
    try:
        # To say what is wrong takes exponential time if a schema refers to itself; this does not.
        if validator.is_valid(value):
            return None
    except ValueError as error:
        return AnswerProblem(f"The answer cannot be checked: {_cut(str(error))}.", text)
    return AnswerProblem("The answer does not match the schema.", text, mismatch=True)


def reason(error: ValidationError) -> str:
    """Where a text does not match, and why."""
    where = "".join(f"/{part}" for part in error.instance_path)
    return f"{f'at {where}: ' if where else ''}{_cut(error.message)}"


def with_reasons(problem: AnswerProblem, reasons: list[str]) -> str:
    if not reasons:
        return problem.message
    return f"{problem.message.removesuffix('.')}: {'; '.join(reasons)}."


def _expanded(root: Any, part: Any, sizes: dict[int, int]) -> int:
    """How many parts a schema has if each reference is replaced by what it refers to, about."""
    if isinstance(part, list):
        return sum(_expanded(root, each, sizes) for each in part)
    if not isinstance(part, dict):
        return 1
    if id(part) not in sizes:
        # For a reference to itself: the validator remembers what it has checked there.
        sizes[id(part)] = 0
        size = sum(_expanded(root, each, sizes) for each in part.values())
        sizes[id(part)] = size + _expanded(root, _referred(root, part.get("$ref")), sizes)
    return sizes[id(part)]


def _referred(root: Any, reference: Any) -> Any:
    """What a reference to a part of the same schema refers to; None if it is another one."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found = root
    for name in unquote(reference[2:]).split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def answer_validator(schema: str, mask: str | None = None) -> Draft202012Validator:
    """Messages of its errors have `mask` instead of values. Raises InvalidAnswerSchema."""
    # Patterns run in linear time, and references to other documents are not fetched.
    options, decoded = RegexOptions(size_limit=_MAX_PATTERN), msgspec.json.decode(schema)
    try:
        validator = Draft202012Validator(decoded, offline=True, pattern_options=options, mask=mask)
    except ValidationError as error:
        raise InvalidAnswerSchema(_invalid(error)) from None
    except ValueError as error:
        raise InvalidAnswerSchema(_cut(" ".join(str(error).split()))) from None
    if _expanded(decoded, decoded, {}) > _MAX_EXPANDED:
        raise InvalidAnswerSchema("its references multiply: no answer could be checked in time")
    return validator


def _invalid(error: ValidationError) -> str:
    if isinstance(error.kind, ValidationErrorKind.Format):
        return f"{reason(error)}; write patterns short, without look-around and back-references"
    return reason(error)


def _alternatives(values: tuple[str, ...]) -> str:
    return " or ".join(f'"{value}"' for value in values)


def _quoted(text: str) -> str:
    return f'"{_cut(" ".join(text.split()), _MAX_QUOTED)}"'


def _cut(text: str, size: int = _MAX_REASON) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
