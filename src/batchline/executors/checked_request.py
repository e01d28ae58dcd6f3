"""The body of a request for an answer that must meet rules: with its format, and what was wrong before.

Everything else in the body stays as it is, byte for byte: a number may have more digits than Python keeps.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from batchline.batches.output import NotJson, response_body
from batchline.model import Failed

_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
_NAME = "answer"
# How upstreams call the format that they do not take: OpenAI, Groq, Gemini, vLLM, llama.cpp.
_FORMAT = re.compile(
    r"response[_ ]?(format|schema)|text\.format|json[_ ]schema|grammar|guided|structured[_ ]output",
    re.IGNORECASE,
)
# Here FastAPI quotes the request.
_QUOTED_FIELDS = ("input", "ctx")
_MAX_REFUSAL = 64 * 1024

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_messages = msgspec.json.Decoder(list[msgspec.Raw] | str).decode
_encode = msgspec.json.Encoder().encode


class Correction(msgspec.Struct, frozen=True):
    """The last answer, if it is known and not too large, and what was wrong with it."""

    text: str | None
    problem: str


class AnswerFormat:
    """A schema as the format of answers, encoded once for all requests."""

    def __init__(self, schema: str) -> None:
        strict = {"strict": True} if _is_strict(msgspec.json.decode(schema)) else {}
        described = {"name": _NAME, "schema": msgspec.Raw(schema.encode())} | strict
        self._chat = msgspec.Raw(_encode({"type": "json_schema", "json_schema": described}))
        self._response = msgspec.Raw(_encode({"type": "json_schema", **described}))

    def add(self, url: str, fields: dict[str, msgspec.Raw]) -> bool:
        """Whether it was added. A format that the line has itself is kept."""
        if url == _CHAT:
            return fields.setdefault("response_format", self._chat) is self._chat
        try:
            text = _decode_fields(fields.get("text", b"{}"))
        except msgspec.ValidationError:
            return False
        if "format" in text:
            return False
        fields["text"] = msgspec.Raw(_encode(text | {"format": self._response}))
        return True


class CheckedRequest(msgspec.Struct, frozen=True):
    body: bytes
    # The format was added.
    formatted: bool = False


def checked_request(
    url: str, body: bytes, answer_format: AnswerFormat | None, correction: Correction | None
) -> CheckedRequest:
    """How to ask for an answer. Bodies of endpoints without messages stay as they are."""
    if url not in (_CHAT, _RESPONSES) or (answer_format is None and correction is None):
        return CheckedRequest(body)
    try:
        fields = _decode_fields(body)
    except msgspec.ValidationError:
        return CheckedRequest(body)
    formatted = answer_format is not None and answer_format.add(url, fields)
    if correction is not None:
        _add_messages(fields, "messages" if url == _CHAT else "input", correction)
    return CheckedRequest(_encode(fields), formatted)


def _add_messages(fields: dict[str, msgspec.Raw], name: str, correction: Correction) -> None:
    try:
        before = _decode_messages(fields.get(name, b"null"))
    except msgspec.ValidationError:
        return
    messages = [{"role": "user", "content": before}] if isinstance(before, str) else before
    # An empty message of the assistant is refused by some upstreams.
    said = [{"role": "assistant", "content": correction.text}] if correction.text else []
    complaint = f"Your last answer cannot be used. {correction.problem} Answer the request again, correctly."
    fields[name] = msgspec.Raw(_encode([*messages, *said, {"role": "user", "content": complaint}]))


def refuses_format(ran: Failed) -> bool:
    """Whether the upstream does not take the format that was added, by what it says."""
    if ran.status_code not in (400, 422) or len(ran.output) > _MAX_REFUSAL:
        return False
    try:
        said = msgspec.json.decode(response_body(ran.output))
        return any(_FORMAT.search(text) for text in _texts_in(said))
    except (msgspec.DecodeError, NotJson, RecursionError):
        return False


def _texts_in(value: Any) -> Iterator[str]:
    """All texts of an error, also a list of them as FastAPI has it."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts_in(each)
        case dict():
            for name, each in value.items():
                if name not in _QUOTED_FIELDS:
                    yield from _texts_in(each)


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI takes it in strict mode: every object names all its fields, and requires them."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(
            properties
        ):
            return False
    return all(map(_is_strict, schema.values()))
