"""Limits on the shape of JSON from outside: how deep it may be nested, and how many values it may have.

Both are counted in the bytes, before anything is decoded: decoders, schemas, masking and answers all recurse,
each up to a depth of its own, and what one of them took the next one must be able to take too.
"""

import re

MAX_DEPTH = 200
"""Levels of arrays and objects in an item, a line's body or an answer. Around them there are a few more, and
the least patient library on the way gives up after 255."""

WRAPPED = 2
"""Levels around them: `{"items": [item]}`, `{"body": body}`, `{"response": {"body": answer}}`."""

MAX_VALUES = 100_000
"""Values in one request. Decoding holds Python's lock, and this many take some 50 ms."""

# Linear: a string is left by exactly one of its characters.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NO_NUMBER = re.compile(rb"-?\b(?:NaN|Infinity|nan|inf)\b")


def is_too_deep(text: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether JSON text has more than `limit` levels. Of text that is no JSON it may say either."""
    # Python replaces a byte several times as fast as it counts it, and every line of a file comes by here.
    if len(text) - len(text.replace(b"[", b"").replace(b"{", b"")) <= limit:
        return False
    brackets = _STRINGS.sub(b"", text).translate(_TO_SQUARE, _NOT_BRACKETS)
    for _ in range(limit):
        # Each round takes the innermost level away.
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def has_too_many_values(text: bytes, limit: int = MAX_VALUES) -> bool:
    """Whether JSON text has more than about `limit` values: each is the first of its container, or follows a
    comma."""
    if _values(text) <= limit:
        return False
    return _values(_STRINGS.sub(b"", text)) > limit


def why_not_json(text: bytes) -> str | None:
    """What people write that looks like JSON to them; None: something else is wrong with it."""
    found = _NO_NUMBER.search(_STRINGS.sub(b'""', text))
    return None if found is None else f"{found[0].decode()} is not a JSON number; write null or a text"


def _values(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")
