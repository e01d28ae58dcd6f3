"""Removes an upstream's credentials from what it answers: an upstream may quote the key that it was sent.

A body is searched for the longest part of the secret that no encoding changes, which is as quick as memory is
read, and copied only where that was found. The secret is found as it is, and with JSON or percent escapes for
any of its other characters. What was changed in another way is not found: base64, or cut into pieces.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

MASK = b"***"
# Placeholders such as EMPTY are shorter: to mask them would only spoil answers.
MIN_SECRET = 8

_PLAIN = re.compile(rb"[A-Za-z0-9_.-]+")

_Search: TypeAlias = tuple[bytes, re.Pattern[bytes]]


class Redactor:
    """Of some secrets; those that are too short are not searched for. Secrets are printable ASCII."""

    __slots__ = ("_searches",)

    def __init__(self, secrets: Iterable[str]) -> None:
        self._searches = [_search(secret.encode()) for secret in secrets if len(secret) >= MIN_SECRET]

    def body(self, body: bytes) -> bytes:
        for core, pattern in self._searches:
            if core in body:
                body = pattern.sub(MASK, body)
        return body

    def text(self, text: str) -> str:
        if not self._searches:
            return text
        return self.body(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _search(secret: bytes) -> _Search:
    core = max(_PLAIN.findall(secret), key=len, default=b"")
    return core, re.compile(b"".join(_forms(byte) for byte in secret))


def _forms(byte: int) -> bytes:
    """A character as it may be written. Longer forms come first: nothing of an escape may be left behind."""
    code = b"".join(
        b"[%c%c]" % (digit, digit ^ 32) if digit > 57 else b"%c" % digit for digit in b"%02x" % byte
    )
    forms = [rb"\\u00" + code, b"%" + code]
    character = re.escape(bytes([byte]))
    if byte in b'"\\/':
        forms.append(rb"\\" + character)
    return b"(?:%b|%b)" % (b"|".join(forms), character)
