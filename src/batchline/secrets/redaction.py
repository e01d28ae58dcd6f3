"""Removes an upstream's credentials from its answers: an upstream may quote the key of a request.

A body is searched for the longest part of the secret that no encoding changes, which is fast, and copied only
if that is found. The secret is found unchanged, and with JSON or percent escapes for any of its other
characters. Other encodings, such as base64, and secrets in pieces are not found.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

MASK = b"***"
# Shorter ones are placeholders such as EMPTY; masking them would damage answers.
MIN_SECRET = 8

_PLAIN = re.compile(rb"[A-Za-z0-9_.-]+")

_Search: TypeAlias = tuple[bytes, re.Pattern[bytes]]


class Redactor:
    """Masks secrets, which must be printable ASCII. Short ones are ignored."""

    __slots__ = ("_searches",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._searches = [_search(secret.encode()) for secret in secrets if len(secret) >= MIN_SECRET]

    def body(self, body: bytes) -> bytes:
        for core, pattern in self._searches:
            if core in body:
                # A function, not the mask itself: between two calls, other threads can run.
                body = pattern.sub(_mask, body)
        return body

    def text(self, text: str) -> str:
        if not self._searches:
            return text
        return self.body(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _mask(_: re.Match[bytes]) -> bytes:
    return MASK


def _search(secret: bytes) -> _Search:
    core = max(_PLAIN.findall(secret), key=len, default=b"")
    return core, re.compile(b"".join(_forms(byte) for byte in secret))


def _forms(byte: int) -> bytes:
    """The encodings of a character. Longer ones come first, so that no part of an escape remains."""
    code = b"".join(
        b"[%c%c]" % (digit, digit ^ 32) if digit > 57 else b"%c" % digit for digit in b"%02x" % byte
    )
    forms = [rb"\\u00" + code, b"%" + code]
    character = re.escape(bytes([byte]))
    if byte in b'"\\/':
        forms.append(rb"\\" + character)
    return b"(?:%b|%b)" % (b"|".join(forms), character)
