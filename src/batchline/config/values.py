"""Values: each reader takes what TOML gives and raises ValueError with a reason for a person."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from batchline.config import durations

Reader: TypeAlias = Callable[[Any], Any]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE = re.compile(r"(\d+)\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_NEVER = "never"


def count(minimum: int, maximum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise ValueError(f"must be a whole number from {minimum} to {maximum}")
        return value

    return read


def size(value: Any) -> int:
    match = _SIZE.fullmatch(str(value)) if type(value) in (int, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError('must be a number of bytes, or a size such as "200MB" or "8GiB"')
    return int(match[1]) * _UNITS[match[2] or "B"]


def time(value: Any) -> float:
    if type(value) in (int, float) and 0 < value < float("inf"):
        return float(value)
    if type(value) is not str:
        raise ValueError('must be a number of seconds above 0, or a time such as "90m"')
    return durations.seconds(value)


def time_or_never(value: Any) -> float | None:
    return None if value == _NEVER else time(value)


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def text(value: Any) -> str:
    if type(value) is not str or not value or not value.isprintable():
        raise ValueError("must be a text that is not empty")
    return value


def texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not value:
        raise ValueError("must be a list that is not empty")
    return tuple(text(each) for each in value)


def models(value: Any) -> tuple[str, ...]:
    """Empty for an upstream that is there for operations alone."""
    return () if value == [] else texts(value)


def table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    return value


def text_table(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(type(each) is str for each in value.values()):
        raise ValueError("must be a table of texts")
    return value


def tables(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("must be a list of tables")
    return tuple(value)


def method(value: Any) -> str:
    return text(value).upper()


def body(value: Any) -> Any:
    if type(value) not in (str, dict, list):
        raise ValueError("must be a template: a text, a table or a list")
    return value


def rule(value: Any) -> str | dict[str, str]:
    """One for all, or a table with one for each."""
    return text_table(value) if isinstance(value, dict) else text(value)


def counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of whole numbers")
    return {name: count(1, 100_000)(each) for name, each in value.items()}


def window(value: Any) -> str:
    durations.seconds(text(value))
    return str(value)


def windows(value: Any) -> tuple[str, ...]:
    windows = texts(value)
    for window in windows:
        durations.seconds(window)
    return windows


def name(value: Any) -> str:
    if _NAME.fullmatch(text(value)) is None:
        raise ValueError("must be letters, digits, dots, dashes and underscores, at most 64")
    return str(value)


def url(value: Any) -> str:
    parts = urlsplit(text(value))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must be a URL without user, query or fragment; name the key's variable in api_key_env"
        )
    return str(value)


def variable(value: Any) -> str:
    if _VARIABLE.fullmatch(text(value)) is None:
        raise ValueError("must be the name of an environment variable, not the key itself")
    return str(value)
