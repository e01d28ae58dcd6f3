"""The body of a request for an answer that must meet rules: with its format, and what was wrong before."""

from collections.abc import Mapping
from typing import Any

import msgspec

_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
_NAME = "answer"


class Correction(msgspec.Struct, frozen=True):
    """The last answer, if it is known and not too large, and what was wrong with it."""

    text: str | None
    problem: str


class CheckedRequest(msgspec.Struct, frozen=True):
    """How to ask for an answer. Bodies of endpoints without messages stay as they are."""

    url: str
    # The schema to send as the format; None: send none.
    schema: Mapping[str, Any] | None
    correction: Correction | None

    def body(self, given: bytes) -> bytes:
        if self.url not in (_CHAT, _RESPONSES) or (self.schema is None and self.correction is None):
            return given
        body = msgspec.json.decode(given)
        if not isinstance(body, dict):
            return given
        if self.schema is not None:
            self._add_format(body, self.schema)
        if self.correction is not None:
            self._add_messages(body, self.correction)
        return msgspec.json.encode(body)

    def _add_format(self, body: dict[str, Any], schema: Mapping[str, Any]) -> None:
        """A format that the line has itself is kept."""
        described = {"name": _NAME, "schema": schema} | ({"strict": True} if _is_strict(schema) else {})
        if self.url == _CHAT:
            body.setdefault("response_format", {"type": "json_schema", "json_schema": described})
            return
        text = body.setdefault("text", {})
        if isinstance(text, dict):
            text.setdefault("format", {"type": "json_schema", **described})

    def _add_messages(self, body: dict[str, Any], correction: Correction) -> None:
        field = "messages" if self.url == _CHAT else "input"
        before = body.get(field)
        messages = [{"role": "user", "content": before}] if isinstance(before, str) else before
        if not isinstance(messages, list):
            return
        # An empty message of the assistant is refused by some upstreams.
        said = [{"role": "assistant", "content": correction.text}] if correction.text else []
        complaint = (
            f"Your last answer cannot be used. {correction.problem} Answer the request again, correctly."
        )
        body[field] = [*messages, *said, {"role": "user", "content": complaint}]


def _is_strict(schema: Any) -> bool:
    """Whether OpenAI takes it in strict mode: every object names all its fields, and requires them."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(
            properties
        ):
            return False
    return all(map(_is_strict, schema.values()))
