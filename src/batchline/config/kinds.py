"""The kinds of values that settings have: how each is written, checked and displayed."""

import math
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batchline.config import durations
from batchline.model import BATCH_APIS, PROVIDER_NAMES, Recovery, Via
from batchline.model.concurrency import MAX_CEILING, AutoConcurrency, parsed_concurrency
from batchline.model.endpoints import is_pattern
from batchline.secrets.addresses import public_url

MIB = 2**20

_NEVER = "never"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(r"[^\W\d][\w.-]*(:[^\W\d][\w.]*)?")
_SIZE = re.compile(r"(\d+)\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_UNITS = {unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))}
_UNITS |= {unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)}


def _same(value: Any) -> Any:
    return value


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _words(text: str) -> list[str]:
    """As a shell splits them, but nothing is expanded. Empty, and so refused, without a closing quote."""
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _display(value: Any) -> str:
    """A value as TOML writes it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str() | Path():
            return f'"{value}"'
        case tuple() | list():
            return f"[{', '.join(map(_display, value))}]"
        case dict():
            return f"{{{', '.join(f'{key} = {_display(each)}' for key, each in value.items())}}}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Kind:
    # Completes the sentence "must be …".
    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = _same
    # From the text of a variable or a flag to the value that TOML would give.
    from_text: Callable[[str], Any] = _toml
    display: Callable[[Any], str] = _display
    metavar: str = "TEXT"

    def read(self, value: Any) -> Any:
        """The setting's value, from TOML's. Raises ValueError with a reason for a person."""
        if not self.accepts(value):
            raise ValueError(f"must be {self.expected}")
        return self.convert(value)


def count(minimum: int, maximum: int) -> Kind:
    def accepts(value: Any) -> bool:
        return type(value) is int and minimum <= value <= maximum

    return Kind(f"a whole number from {minimum:,} to {maximum:,}", accepts, metavar="N")


def concurrency() -> Kind:
    """How many requests at once: a number, or what measuring finds, up to a ceiling."""
    expected = f'"auto", "auto:N" with a ceiling, or a whole number from 1 to {MAX_CEILING:,}'

    def accepts(value: Any) -> bool:
        return parsed_concurrency(value) is not None

    return Kind(expected, accepts, parsed_concurrency, display=_display_concurrency, metavar="N|auto")


def _display_concurrency(value: Any) -> str:
    return f'"{value}"' if isinstance(value, AutoConcurrency) else _display(value)


def amount(minimum: float, maximum: float) -> Kind:
    """A number, whole or not."""

    def accepts(value: Any) -> bool:
        return type(value) in (int, float) and minimum <= value <= maximum

    return Kind(f"a number from {minimum:g} to {maximum:,.10g}", accepts, float, metavar="N")


def time(minimum: float = 0.0, maximum: float = math.inf) -> Kind:
    """Seconds. Without a minimum, any time above zero."""

    def accepts(value: Any) -> bool:
        seconds = _seconds(value) or 0.0
        return 0 < seconds < math.inf and minimum <= seconds <= maximum

    limits = [f"at least {minimum:g} s"] if minimum else []
    limits += [f"at most {maximum:g} s"] if maximum < math.inf else []
    limit = f"of {' and '.join(limits)}, " if limits else ""
    expected = f'a time {limit}such as "90m" or "7d", or a number of seconds'
    return Kind(expected, accepts, _seconds, display=durations.text, metavar="TIME")


def size(minimum: int = 1, unit: str = "B") -> Kind:
    """Bytes. A number without a unit has the given one."""

    def convert(value: Any) -> int:
        match = _SIZE.fullmatch(str(value)) if type(value) in (int, str) else None
        return 0 if match is None else int(match[1]) * _UNITS[match[2] or unit]

    limit = f"of at least {_size_text(minimum)}, " if minimum > 1 else ""
    expected = f'a size {limit}such as "200MB" or "8GiB", or a number of {unit if unit != "B" else "bytes"}'
    return Kind(
        expected, lambda value: convert(value) >= minimum, convert, display=_size_text, metavar="SIZE"
    )


def _size_text(size: int | None) -> str:
    if size is None:
        return "none"
    unit = next(unit for unit in ("TiB", "GiB", "MiB", "KiB", "B") if size % _UNITS[unit] == 0)
    return f'"{size // _UNITS[unit]}{unit}"'


def _seconds(value: Any) -> float | None:
    if type(value) in (int, float):
        return float(value)
    try:
        return durations.seconds(value) if type(value) is str else None
    except ValueError:
        return None


def _is_text(value: Any) -> bool:
    return type(value) is str and value != "" and value.isprintable()


def _is_time(value: Any) -> bool:
    return type(value) is str and _seconds(value) is not None


def _is_url(value: Any) -> bool:
    parts = urlsplit(value if _is_text(value) else "")
    plain = "@" not in parts.netloc and not parts.query and not parts.fragment
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def _is(pattern: re.Pattern[str]) -> Callable[[Any], bool]:
    return lambda value: _is_text(value) and pattern.fullmatch(value) is not None


def _list_of(accepts: Callable[[Any], bool], minimum: int = 0) -> Callable[[Any], bool]:
    return lambda value: type(value) is list and len(value) >= minimum and all(map(accepts, value))


def _table_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(accepts, value.values()))


def _text(expected: str, accepts: Callable[[Any], bool] = _is_text, metavar: str = "TEXT") -> Kind:
    return Kind(expected, accepts, from_text=str, metavar=metavar)


def _one_of(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


REQUESTS_PER_MINUTE = count(1, 1_000_000_000)
TOKENS_PER_MINUTE = count(1, 1_000_000_000_000)
SWITCH = Kind("true or false", lambda value: type(value) is bool)
TEXT = _text("a text that is not empty")
NAME = _text("letters, digits, dots, dashes and underscores, at most 64", _is(_NAME))
VARIABLE = _text("the name of an environment variable, not the key itself", _is(_VARIABLE), "NAME")
ADDRESS = _text("a URL", metavar="URL")
UPSTREAM = replace(ADDRESS, display=lambda url: _display(url and public_url(url)))
_BASE_URL = (
    "an http:// or https:// URL without user, query and fragment; name the key's variable in api_key_env"
)
BASE_URL = _text(_BASE_URL, _is_url, "URL")
ENDPOINT = _text(
    "an http:// or https:// URL without user, query and fragment; give a key in OTEL_EXPORTER_OTLP_HEADERS",
    _is_url,
    "URL",
)
URLS = Kind("a list of http:// or https:// URLs", _list_of(_is_url), tuple, _split, metavar="URLS")
ENDPOINTS = Kind(
    "a list of paths such as /v1/score, or /v1/* for all below, without dots, queries and escapes",
    _list_of(is_pattern),
    tuple,
    _split,
    metavar="PATHS",
)
PATH = Kind("a path", _is_text, Path, from_text=str, metavar="PATH")
TIME_OR_NEVER = Kind(
    f'"{_NEVER}", or {time().expected}',
    lambda value: value == _NEVER or time().accepts(value),
    lambda value: None if value == _NEVER else _seconds(value),
    display=lambda value: f'"{_NEVER}"' if value is None else durations.text(value),
)
WINDOW = _text("a time such as 24h, 90m or 7d", _is_time, "TIME")
WINDOWS = Kind("a list of times such as 24h, 90m or 7d, at least one", _list_of(_is_time, 1), tuple, _split)
TEXTS = Kind("a list of texts that is not empty", _list_of(_is_text, 1), tuple, _split)
COMMAND = Kind(
    "a program and its arguments: a list of texts, or a line without unclosed quotes",
    _list_of(lambda value: type(value) is str and "\0" not in value, 1),
    tuple,
    _words,
    metavar="COMMAND",
)
FUNCTIONS = Kind(
    "a list of module:function and of names of entry points",
    _list_of(_is(_FUNCTION), 1),
    tuple,
    _split,
    metavar="FUNCTION",
)
VARIABLES = Kind(
    "a list of names of environment variables", _list_of(_is(_VARIABLE)), tuple, _split, metavar="NAMES"
)
MODELS = Kind("a list of model names", _list_of(_is_text), tuple, _split)
STAGES = Kind("a list of names of stages", _list_of(_is_text), tuple, _split)
# It may have several lines.
PROMPT = _text("a text that is not empty", lambda value: type(value) is str and value.strip() != "")
PROVIDER = _text(_one_of(PROVIDER_NAMES), lambda value: value in PROVIDER_NAMES, "NAME")
RECOVERY = Kind(
    _one_of(list(Recovery)), lambda value: value in list(Recovery), Recovery, from_text=str, metavar="HOW"
)
VIA = Kind(_one_of(list(Via)), lambda value: value in list(Via), Via, from_text=str, metavar="HOW")
BATCH_API = _text(_one_of(BATCH_APIS), lambda value: value in BATCH_APIS, "NAME")
_BATCH_RECOVERIES = [Recovery.HOLD, Recovery.RESUBMIT]
BATCH_RECOVERY = Kind(
    _one_of(_BATCH_RECOVERIES),
    lambda value: value in _BATCH_RECOVERIES,
    Recovery,
    from_text=str,
    metavar="HOW",
)
METHOD = Kind("an HTTP method", _is_text, str.upper)
TEMPLATE = Kind("a template: a text, a table or a list", lambda value: type(value) in (str, dict, list))
TABLE = Kind("a table", lambda value: isinstance(value, dict))
TABLES = Kind("a list of tables", _list_of(TABLE.accepts), tuple)
TEXT_TABLE = Kind("a table of texts", _table_of(lambda value: type(value) is str))
ALIASES = Kind('a table of texts, such as { "small" = "org/small-1b" }', _table_of(_is_text))
REQUEST_PATH = _text(
    "a path that begins with /, such as /health",
    lambda value: _is_text(value) and value.startswith("/"),
    "PATH",
)
RULES = Kind(
    "a rule, or a table with a rule for each operation",
    lambda value: _is_text(value) or TEXT_TABLE.accepts(value),
)
SUBMITTERS = Kind(
    "a list of texts that is not empty, or a table with such a list for each operation",
    lambda value: TEXTS.accepts(value) or _table_of(TEXTS.accepts)(value),
    lambda value: (
        {name: tuple(each) for name, each in value.items()} if isinstance(value, dict) else tuple(value)
    ),
)
BATCH_SIZES = Kind(
    "a table with a whole number from 1 to 100,000 for each operation", _table_of(count(1, 100_000).accepts)
)
