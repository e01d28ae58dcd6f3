"""Masks secrets in items, errors and log lines.

A value is secret because of the name of its field, or because of its form: a URL with a password, a bearer
token, a private key, a connection string. An operation can add names. If in doubt, a value is masked.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec

MASK = "***REDACTED***"
# Shorter secrets would match parts of ordinary words.
_MIN_QUOTED = 4

MAX_SECRETS = 1000
MAX_SECRET_BYTES = 32 * 1024
"""Limits per item. The search for secrets in an answer needs memory for each of their characters."""

_SECRET_NAMES = re.compile(
    r"""
    passw(?:or)?d | passphrase | pwd$ | ^pass$ | secret | token | credential | authorization | ^auth$ | cookie
    | (?:api|access|private|signing|account)_?key | (?:^|(?<!public)_)keys?$
    | conn(?:ection)?_?str(?:ing)? | ^dsn$ | kubeconfig | certificate_?data | key_?data
    """,
    re.VERBOSE,
)

_SECRET_WORDS = (
    # passw and d with few characters between them: also passwörd, in any encoding of ö.
    r"(?<![\w-])[\w-]*(?:passw[^\s=:;\"']{0,4}d|passphrase|pwd|secret|token|credential|api[_-]?key|access[_-]?key"
    r"|accountkey|sharedaccesskey|private[_-]?key)"
)

# Secrets inside other text; the text around them stays readable. Patterns that begin with a repetition have a
# look-behind, so that a long run is tried once and not at each of its characters: callers can send such text.
_IN_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        MASK,
    ),
    # scheme://user:password@host, and scheme://token@host
    # Up to the last @ before the path, because a password may contain an @ that is not encoded.
    (re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^\s/?#\"']+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9+/=._~-]{6,}", re.IGNORECASE), rf"\1 {MASK}"),
    # In a connection string, a value ends at a semicolon and may contain spaces: …;Password=a b
    (
        re.compile(rf"(;\s{{0,9}}{_SECRET_WORDS}\s{{0,9}}=\s{{0,9}})(?![\"'])[^;\r\n]+", re.IGNORECASE),
        rf"\1{MASK}",
    ),
    # password=…, "token": "…", AccountKey=…; up to the end of the value, or to a semicolon if one follows.
    (
        re.compile(
            rf"""({_SECRET_WORDS}["']?\s*(?:=|(:))\s*)"""
            r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|(?(2)(?!)|[^;"'\r\n]{1,256}(?=;))|[^\s;,&"'}\])]+)""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), MASK),
    (re.compile(r"\b(?:sk|pk|bl|ghp|gho|ghs|xox[abp])[-_][A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\bAKIA[A-Z0-9]{16}\b"), MASK),
)


def is_secret_name(name: str, more: Collection[str] = ()) -> bool:
    """Whether fields of this name are secret. `more` are an operation's names; case does not matter."""
    name = _without_marks(name)
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").replace(".", "_")
    if _SECRET_NAMES.search(plain) is not None:
        return True
    return any(name.lower() == _without_marks(each).lower() for each in more)


def masked(value: Any, redact: Collection[str] = ()) -> Any:
    """The value without secrets, at all levels."""
    match value:
        case str():
            return masked_text(value)
        case Mapping():
            return {
                masked_text(str(name)): MASK
                if each is not None and is_secret_name(str(name), redact)
                # Also a container: everything below a secret name is secret.
                else masked(each, redact)
                for name, each in value.items()
            }
        case list() | tuple():
            return [masked(each, redact) for each in value]
        case _:
            return value


def secrets_in(value: Any, redact: Collection[str] = (), *, hidden: bool = False) -> Iterator[str]:
    """Values below secret names, as text. An upstream may quote them anywhere in its answer."""
    match value:
        case bool():
            return
        case str() | int() | float() if hidden and len(str(value)) >= _MIN_QUOTED:
            yield str(value)
        case Mapping():
            for name, each in value.items():
                yield from secrets_in(each, redact, hidden=hidden or is_secret_name(str(name), redact))
        case list() | tuple():
            for each in value:
                yield from secrets_in(each, redact, hidden=hidden)


class TooManySecrets(ValueError):
    """The item has too many secrets to search for in an answer. The message is for a person."""


def secrets_of(item: Any, redact: Collection[str] = ()) -> frozenset[str]:
    """The secrets of an item. Raises TooManySecrets."""
    secrets = list(islice(secrets_in(item, redact), MAX_SECRETS + 1))
    if len(secrets) > MAX_SECRETS:
        raise TooManySecrets(f"more than {MAX_SECRETS:,} fields with secret names")
    size = sum(len(secret.encode("utf-8", "replace")) for secret in secrets)
    if size > MAX_SECRET_BYTES:
        raise TooManySecrets(f"{size:,} bytes in fields with secret names; at most {MAX_SECRET_BYTES:,}")
    return frozenset(secrets)


class SecretFinder:
    """Masks secrets anywhere in a value, in all their encodings, in one pass.

    It is an Aho-Corasick automaton, which reads each character once, whatever the number of secrets.
    """

    def __init__(self, secrets: Collection[str]) -> None:
        self._forms = {form for secret in secrets for form in _quoted(secret)}
        # A state is a prefix of a form. 0 is the empty prefix.
        self._next: list[dict[str, int]] = [{}]
        # Length of the longest form that the prefix ends with.
        self._found = [0]
        # The state of the longest proper suffix of the prefix.
        self._shorter = [0]
        for form in self._forms:
            self._add(form)
        self._link()
        self._first = re.compile(f"[{re.escape(''.join(self._next[0]))}]") if self._forms else None

    def hide(self, value: Any) -> Any:
        match value:
            case str():
                return self.hide_text(value)
            case bool():
                return value
            case int() | float() if str(value) in self._forms:
                return MASK
            case Mapping():
                return {self.hide_text(str(name)): self.hide(each) for name, each in value.items()}
            case list() | tuple():
                return [self.hide(each) for each in value]
            case _:
                return value

    def hide_text(self, text: str) -> str:
        spans = self._spans(text)
        if not spans:
            return text
        pieces, end = [], 0
        for start, stop in spans:
            pieces.append(text[end:start])
            end = stop
        return MASK.join([*pieces, text[end:]])

    def _add(self, form: str) -> None:
        state = 0
        for sign in form:
            following = self._next[state].get(sign)
            if following is None:
                following = self._next[state][sign] = len(self._next)
                self._next.append({})
                self._found.append(0)
                self._shorter.append(0)
            state = following
        self._found[state] = len(form)

    def _link(self) -> None:
        """Breadth first, so that shorter prefixes are linked before."""
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            for sign, following in self._next[state].items():
                self._shorter[following] = shorter = self._step(self._shorter[state], sign)
                self._found[following] = self._found[following] or self._found[shorter]
                states.append(following)

    def _step(self, state: int, sign: str) -> int:
        while (following := self._next[state].get(sign)) is None:
            if not state:
                return 0
            state = self._shorter[state]
        return following

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Positions of forms; overlapping ones are joined."""
        spans: list[tuple[int, int]] = []
        if self._first is None or (first := self._first.search(text)) is None:
            return spans
        state = 0
        for stop, sign in enumerate(text[first.start() :], first.start() + 1):
            state = self._step(state, sign)
            if length := self._found[state]:
                start = stop - length
                while spans and start < spans[-1][1]:
                    start = min(start, spans.pop()[0])
                spans.append((start, stop))
        return spans


def without(value: Any, secrets: Collection[str]) -> Any:
    """The value without these secrets, in all their encodings."""
    return SecretFinder(secrets).hide(value) if secrets else value


def _quoted(secret: str) -> Iterator[str]:
    """The secret unchanged, as in a JSON string, and as in a URL."""
    yield secret
    yield msgspec.json.encode(secret).decode()[1:-1]
    yield quote(secret, safe="")


def masked_text(text: str) -> str:
    """Mask secrets in text, such as an error message, a reason or a connection string."""
    for pattern, displayed in _IN_TEXT:
        text = pattern.sub(displayed, text)
    return text


def _without_marks(name: str) -> str:
    """The name without diacritics and invisible characters: passwörd becomes password."""
    if name.isascii():
        return name
    letters = unicodedata.normalize("NFKD", name)
    return "".join(letter for letter in letters if unicodedata.category(letter) not in ("Mn", "Me", "Cf"))
