"""Limits on JSON from outside: depth of nesting and number of values.

Both are checked on the bytes, before decoding. Decoders, schemas, masking and answers all recurse, each up to
a different depth, and JSON that one of them accepts must not fail in the next.
"""

import re

MAX_DEPTH = 200
"""Levels of arrays and objects in an item, a line's body or an answer. The strictest library allows 255."""

WRAPPED = 2
"""Additional levels around them: `{"items": [item]}`, `{"body": body}`, `{"response": {"body": answer}}`."""

MAX_VALUES = 100_000
"""Values in one request. Decoding that many holds the GIL for about 50 ms."""

# Linear time: each character of a string matches in one way only.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_NUMBER = re.compile(rb"-?\b(?:NaN|Infinity|nan|inf)\b")


def is_too_deep(text: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether JSON has more than `limit` levels. For text that is not JSON, the result is arbitrary."""
    # `replace` is several times faster than `count`, and every line of a file is checked.
    if len(text) - len(text.replace(b"[", b"").replace(b"{", b"")) <= limit:
        return False
    brackets = _STRINGS.sub(b"", text).translate(_TO_SQUARE, _NOT_BRACKETS)
    for _ in range(limit):
        # Each round removes the innermost level.
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def has_too_many_values(text: bytes, limit: int = MAX_VALUES) -> bool:
    """Whether JSON has more than about `limit` values. Each begins a container or follows a comma."""
    if _values(text) <= limit:
        return False
    return _values(_STRINGS.sub(b"", text)) > limit


def why_not_json(text: bytes) -> str | None:
    """A common mistake in text that is not JSON; None: another mistake."""
    found = _NO_NUMBER.search(_STRINGS.sub(b'""', text))
    return None if found is None else f"{found[0].decode()} is not a JSON number; write null or a string"


def _values(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
