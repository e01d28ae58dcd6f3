"""What is secret in an item, an error or a log line, and how it is shown: not at all.

A value is masked by the name of its field, which an operation may add to, or by its look: a URL with a
password in it, a bearer token, a private key, a connection string. Masking errs towards hiding.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

MASK = "***REDACTED***"
# What is shorter would be found in words that have nothing to do with it.
_LEAST_QUOTED = 4

_SECRET_NAMES = re.compile(
    r"""
    passw(?:or)?d | passphrase | pwd$ | ^pass$ | secret | token | credential | authorization | ^auth$ | cookie
    | (?:api|access|private|signing|account)_?key | (?:^|(?<!public)_)keys?$
    | conn(?:ection)?_?str(?:ing)? | ^dsn$ | kubeconfig | certificate_?data | key_?data
    """,
    re.VERBOSE,
)

# Where a secret stands inside other text, its surroundings stay readable. What begins with a run of signs
# looks behind itself, so that a long run is tried once and not from each of its signs: anybody may send one.
_IN_TEXT: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        MASK,
    ),
    # scheme://user:password@host, and scheme://token@host
    (re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^\s/?#\"'@]+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9+/=._~-]{6,}", re.IGNORECASE), rf"\1 {MASK}"),
    # password=…, "token": "…", AccountKey=…; up to where such a value ends.
    (
        re.compile(
            r"""(?<![\w-])([\w-]*(?:passw(?:or)?d|passphrase|pwd|secret|token|credential|api[_-]?key|access[_-]?key
                |accountkey|sharedaccesskey|private[_-]?key)["']?\s*[=:]\s*)
                ("(?:[^"\\]|\\.)*"|'[^']*'|[^\s;,&"'}\])]+)""",
            re.IGNORECASE | re.VERBOSE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), MASK),
    (re.compile(r"\b(?:sk|pk|bl|ghp|gho|ghs|xox[abp])[-_][A-Za-z0-9_-]{16,}"), MASK),
    (re.compile(r"\bAKIA[A-Z0-9]{16}\b"), MASK),
)


def is_secret_name(name: str, more: Collection[str] = ()) -> bool:
    """Whether a field of this name holds a secret. `more` are names that an operation adds, in any case."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_").replace(".", "_")
    return _SECRET_NAMES.search(plain) is not None or any(name.lower() == each.lower() for each in more)


def masked(value: Any, redact: Collection[str] = ()) -> Any:
    """The value without its secrets, as deep as it goes."""
    match value:
        case str():
            return masked_text(value)
        case Mapping():
            return {
                masked_text(str(name)): MASK
                if each is not None and is_secret_name(str(name), redact)
                # Also a container: what is below a secret name is secret.
                else masked(each, redact)
                for name, each in value.items()
            }
        case list() | tuple():
            return [masked(each, redact) for each in value]
        case _:
            return value


def secrets_in(value: Any, redact: Collection[str] = (), *, hidden: bool = False) -> Iterator[str]:
    """What stands below secret names, as text: whoever is sent it may quote it anywhere in an answer."""
    match value:
        case bool():
            return
        case str() | int() | float() if hidden and len(str(value)) >= _LEAST_QUOTED:
            yield str(value)
        case Mapping():
            for name, each in value.items():
                yield from secrets_in(each, redact, hidden=hidden or is_secret_name(str(name), redact))
        case list() | tuple():
            for each in value:
                yield from secrets_in(each, redact, hidden=hidden)


def without(value: Any, secrets: Collection[str]) -> Any:
    """The value without these texts, wherever they stand in it and however they are quoted."""
    quoted = {form for secret in secrets for form in _quoted(secret)}
    # A secret may be the beginning of another: the shorter one first would leave the other one's end.
    return _without(value, sorted(quoted, key=len, reverse=True)) if quoted else value


def _quoted(secret: str) -> Iterator[str]:
    """As it is, as JSON has it inside a text, and as a URL has it."""
    yield secret
    yield msgspec.json.encode(secret).decode()[1:-1]
    yield quote(secret, safe="")


def _without(value: Any, secrets: Sequence[str]) -> Any:
    match value:
        case str():
            for secret in secrets:
                value = value.replace(secret, MASK)
            return value
        case bool():
            return value
        case int() | float() if str(value) in secrets:
            return MASK
        case Mapping():
            return {_without(str(name), secrets): _without(each, secrets) for name, each in value.items()}
        case list() | tuple():
            return [_without(each, secrets) for each in value]
        case _:
            return value


def masked_text(text: str) -> str:
    """Text that may have secrets in it: an error message, a reason, a connection string."""
    for pattern, shown in _IN_TEXT:
        text = pattern.sub(shown, text)
    return text
