"""batchline.toml: upstreams, limits and operations, checked at the start, with errors that name the line.

Every key of `[server]` can be overridden by the environment as BATCHLINE_SERVER_KEY, of `[limits]` as
BATCHLINE_LIMITS_KEY, and every key of an upstream but its name as BATCHLINE_UPSTREAM_NAME_KEY, in capitals.
What nobody knows is an error, here as there: a limit with a slip in its name would be no limit.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from batchline import durations
from batchline.config import (
    ANY_MODEL,
    LimitSettings,
    OperationSettings,
    PackSettings,
    ServerSettings,
    UpstreamSettings,
)

DEFAULT_NAME = "batchline.toml"

_SERVER_PREFIX = "BATCHLINE_SERVER_"
_UPSTREAM_PREFIX = "BATCHLINE_UPSTREAM_"
_LIMITS_PREFIX = "BATCHLINE_LIMITS_"
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

_HEADER = re.compile(r"\s*\[(\[)?\s*([A-Za-z0-9_-]+)((?:\s*\.\s*[A-Za-z0-9_$\"'-]+)*)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")


class SettingsError(Exception):
    """The settings cannot be used as they are. The message says where and why, for a person."""


def load(path: Path | None, environ: Mapping[str, str]) -> ServerSettings:
    """The settings in the file, if one is given, under those of the environment, over the defaults."""
    text = "" if path is None else _content(path)
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from None
    return _Settings(str(path), text, tables, environ).read()


def missing_keys(settings: ServerSettings, environ: Mapping[str, str]) -> list[str]:
    """Why some upstreams could not be asked: variables that should hold their API keys and do not."""
    return [
        f"upstream {upstream.name}: the environment variable {upstream.api_key_env}, which should hold"
        " its API key, is not set"
        for upstream in settings.upstreams
        if upstream.api_key_env and not environ.get(upstream.api_key_env, "").strip()
    ]


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: it is not UTF-8") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


# Values: each reader takes what TOML gives and raises ValueError with a reason for a person.


def _count(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return value

    return read


def _size(value: Any) -> int:
    match = _SIZE.fullmatch(str(value)) if type(value) in (int, str) else None
    if match is None or int(match[1]) == 0:
        raise ValueError('must be a number of bytes, or a size such as "200MB" or "8GiB"')
    return int(match[1]) * _UNITS[match[2] or "B"]


def _time(value: Any) -> float:
    if type(value) in (int, float) and 0 < value < float("inf"):
        return float(value)
    if type(value) is not str:
        raise ValueError('must be a number of seconds above 0, or a time such as "90m"')
    return durations.seconds(value)


def _time_or_never(value: Any) -> float | None:
    return None if value == _NEVER else _time(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("must be true or false")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or not value or not value.isprintable():
        raise ValueError("must be a text that is not empty")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not value:
        raise ValueError("must be a list that is not empty")
    return tuple(_text(each) for each in value)


def _models(value: Any) -> tuple[str, ...]:
    """Empty for an upstream that is there for operations alone."""
    return () if value == [] else _texts(value)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    return value


def _text_table(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(type(each) is str for each in value.values()):
        raise ValueError("must be a table of texts")
    return value


def _tables(value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("must be a list of tables")
    return tuple(value)


def _method(value: Any) -> str:
    return _text(value).upper()


def _body(value: Any) -> Any:
    if type(value) not in (str, dict, list):
        raise ValueError("must be a template: a text, a table or a list")
    return value


def _rule(value: Any) -> str | dict[str, str]:
    """One for all, or a table with one for each."""
    return _text_table(value) if isinstance(value, dict) else _text(value)


def _counts(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of whole numbers")
    return {name: _count(1, 100_000)(each) for name, each in value.items()}


def _window(value: Any) -> str:
    durations.seconds(_text(value))
    return str(value)


def _windows(value: Any) -> tuple[str, ...]:
    windows = _texts(value)
    for window in windows:
        durations.seconds(window)
    return windows


def _name(value: Any) -> str:
    if _NAME.fullmatch(_text(value)) is None:
        raise ValueError("must be letters, digits, dots, dashes and underscores, at most 64")
    return str(value)


def _url(value: Any) -> str:
    parts = urlsplit(_text(value))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "must be a URL without user, query or fragment; name the key's variable in api_key_env"
        )
    return str(value)


def _variable(value: Any) -> str:
    if _VARIABLE.fullmatch(_text(value)) is None:
        raise ValueError("must be the name of an environment variable, not the key itself")
    return str(value)


Reader: TypeAlias = Callable[[Any], Any]

_SERVER: dict[str, Reader] = {
    "max_file_bytes": _size,
    "max_lines": _count(1, 2**31 - 1),
    "max_upload_bytes": _size,
    "max_part_bytes": _size,
    "max_json_bytes": _size,
    "windows": _windows,
    "input_retention": _time_or_never,
    "output_retention": _time_or_never,
    "results_retention": _time_or_never,
    "operations_retention": _time_or_never,
    "upload_lifetime": _time,
    "allow_private_webhooks": _flag,
    "sessions": _count(1, 1000),
    "streams": _count(1, 1000),
    "objects": _text,
    "operation_window": _window,
}
_UPSTREAM: dict[str, Reader] = {
    "name": _name,
    "base_url": _url,
    "api_key_env": _variable,
    "models": _models,
    "concurrency": _count(1, 20_000),
    "timeout": _time,
    "max_attempts": _count(1, 100),
}
_OPERATION: dict[str, Reader] = {
    "name": _name,
    "upstream": _text,
    "path": _text,
    "method": _method,
    "query": _text_table,
    "headers": _text_table,
    "body": _body,
    "content_type": _text,
    "description": _text,
    "schema": _table,
    "largest_batch": _count(1, 100_000),
    "max_attempts": _count(1, 100),
    "approval": _text,
    "self_approval": _flag,
    "redact": _texts,
    "outcomes": _tables,
    "confirm": _text,
    "gone_when": _text,
    "timeout": _time,
}
_LIMITS: dict[str, Reader] = {
    "max_pending_parents": _count(1, 1_000_000),
    "requests_per_minute": _count(1, 10_000_000),
    "user_pending_parents": _count(1, 1_000_000),
    "user_pending_children": _count(1, 1_000_000),
    "cooldown_seconds": _count(0, 31_536_000),
    "contact_admin": _text,
}
_PACK: dict[str, Reader] = {
    "upstream": _text,
    "approval": _rule,
    "self_approval": _flag,
    "largest_batch": _counts,
}
_REQUIRED = {"upstreams": ("name", "base_url"), "operations": ("name", "upstream", "path")}
_LISTS = frozenset({"windows", "models"})
_TEXTS = frozenset({"objects", "operation_window", "contact_admin", "base_url", "api_key_env"})


def _from_text(key: str, text: str) -> Any:
    """A value of the environment, as TOML would have given it."""
    if key in _LISTS:
        return [part.strip() for part in text.split(",")]
    if key in _TEXTS:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@dataclass(frozen=True, slots=True)
class _Settings:
    """One reading of the settings. Places are (table, its number among those of its name, key)."""

    file: str
    text: str
    tables: dict[str, Any]
    environ: Mapping[str, str]

    def read(self) -> ServerSettings:
        for name in self.tables:
            if name not in _TABLES:
                raise self.error((name, 0, None), name, f"there is no such key; there are {_known(_TABLES)}")
        server = self.table("server", 0, self.tables.get("server", {}), _SERVER)
        server.update(self.overrides(_SERVER_PREFIX, _SERVER))
        operations = [
            self.operation(number, table) for number, table in enumerate(self.tables_of("operations"))
        ]
        packs = self.packs(self.tables.get("packs", {}))
        wanted = {each.upstream: each.place_of("upstream") for each in operations}
        wanted |= {each.upstream: each.place for each in packs}
        upstreams = self.tables_of("upstreams")
        for name, place in wanted.items():
            if not any(isinstance(table, dict) and table.get("name") == name for table in upstreams):
                raise SettingsError(f"{place}: there is no upstream {name!r}")
        read = [self.upstream(number, table, wanted) for number, table in enumerate(upstreams)]
        self.check_strangers([upstream.name for upstream in read])
        self.check_models(read)
        limits = self.table("limits", 0, self.tables.get("limits", {}), _LIMITS)
        limits.update(self.overrides(_LIMITS_PREFIX, _LIMITS))
        return ServerSettings(
            upstreams=tuple(read),
            operations=tuple(operations),
            packs=tuple(packs),
            limits=LimitSettings(**limits),
            **server,
        )

    def tables_of(self, name: str) -> Sequence[Any]:
        tables = self.tables.get(name, [])
        if not isinstance(tables, list):
            raise self.error((name, 0, None), name, f"write it as [[{name}]], once for each")
        return tables

    def operation(self, number: int, table: Any) -> OperationSettings:
        values = self.table("operations", number, table, _OPERATION)
        self.check_required("operations", number, values)
        places = {key: self.where(("operations", number, key)) for key in values}
        return OperationSettings(**values, places=places | {"": self.where(("operations", number, None))})

    def packs(self, table: Any) -> Sequence[PackSettings]:
        if not isinstance(table, dict):
            raise self.error(("packs", 0, None), "packs", "it must be a table")
        read = []
        for name, pack in table.items():
            values = self.table(f"packs.{name}", 0, pack, _PACK)
            if "upstream" not in values:
                raise self.error(("packs", 0, name), f"packs.{name}.upstream", "it is missing")
            read.append(PackSettings(name, **values, place=self.where(("packs", 0, name))))
        return read

    def upstream(self, number: int, table: Any, wanted: Mapping[str, str]) -> UpstreamSettings:
        values = self.table("upstreams", number, table, _UPSTREAM)
        name = values.get("name")
        if name is not None:
            others = {key: reader for key, reader in _UPSTREAM.items() if key != "name"}
            values.update(self.overrides(_variables_of(name), others))
        self.check_required("upstreams", number, values)
        if name in wanted:
            # What is there for operations is sent no models' requests, unless it says that it has them.
            values.setdefault("models", ())
        return UpstreamSettings(**values)

    def check_required(self, name: str, number: int, values: Mapping[str, Any]) -> None:
        for key in _REQUIRED[name]:
            if key not in values:
                raise self.error((name, number, None), f"{name}[{number}].{key}", "it is missing")

    def table(self, name: str, number: int, table: Any, readers: dict[str, Reader]) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self.error((name, number, None), name, "it must be a table")
        shown = f"{name}[{number}]" if name in _REQUIRED else name
        values = {}
        for key, value in table.items():
            place = (name, number, key)
            if key not in readers:
                raise self.error(
                    place, f"{shown}.{key}", f"there is no such key; there are {_known(readers)}"
                )
            try:
                values[key] = readers[key](value)
            except ValueError as error:
                raise self.error(place, f"{shown}.{key}", str(error)) from None
        return values

    def overrides(self, prefix: str, readers: dict[str, Reader]) -> dict[str, Any]:
        values = {}
        for variable, text in self.environ.items():
            if not variable.startswith(prefix):
                continue
            key = variable.removeprefix(prefix).lower()
            if key not in readers:
                if prefix in (_SERVER_PREFIX, _LIMITS_PREFIX):
                    raise SettingsError(f"environment variable {variable}: there is no such setting")
                continue
            try:
                values[key] = readers[key](_from_text(key, text))
            except ValueError as error:
                raise SettingsError(f"environment variable {variable}: {error}") from None
        return values

    def check_strangers(self, names: Sequence[str]) -> None:
        """A variable for an upstream or a key that is not there."""
        known = {_variables_of(name) + key.upper() for name in names for key in _UPSTREAM if key != "name"}
        for variable in self.environ:
            if variable.startswith(_UPSTREAM_PREFIX) and variable not in known:
                raise SettingsError(f"environment variable {variable}: there is no such upstream or setting")

    def check_models(self, upstreams: Sequence[UpstreamSettings]) -> None:
        """Every name and every model is one upstream's, or nobody could say where a line goes."""
        names: dict[str, str] = {}
        owners: dict[str, str] = {}
        for number, upstream in enumerate(upstreams):
            variables = _variables_of(upstream.name)
            if variables in names:
                why = f"{upstream.name!r} and {names[variables]!r} are the same name"
                raise self.error(("upstreams", number, "name"), f"upstreams[{number}].name", why)
            names[variables] = upstream.name
            for model in upstream.models:
                if model in owners:
                    what = "any model" if model == ANY_MODEL else f"model {model!r}"
                    why = f"{what} is served by {owners[model]} already"
                    raise self.error(("upstreams", number, "models"), f"upstreams[{number}].models", why)
                owners[model] = upstream.name

    def error(self, place: "_Place", key: str, why: str) -> SettingsError:
        return SettingsError(f"{self.where(place)}: {key}: {why}")

    def where(self, place: "_Place") -> str:
        line = _line_of(self.text, place)
        return self.file if line is None else f"{self.file}, line {line}"


_Place: TypeAlias = tuple[str, int, str | None]
_TABLES = ("server", "limits", "upstreams", "operations", "packs")


def _variables_of(name: str) -> str:
    return _UPSTREAM_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper() + "_"


def _known(names: Any) -> str:
    return ", ".join(sorted(names))


def _line_of(text: str, place: _Place) -> int | None:
    """The line of a key, or of its table where it is written in another way. TOML's parser does not say."""
    table, number, _ = place
    parent, _, name = table.rpartition(".")
    best = None
    for line, found in _keys(text):
        if found == place:
            return line
        if best is None and found in ((table, number, None), ("", 0, table), (parent, number, name)):
            best = line
    return best


def _keys(text: str) -> Iterator[tuple[int, _Place]]:
    """Where the tables and keys are, as they are usually written. A table inside another is a key of it."""
    table, counts = "", {"": 0}
    for line, content in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(content):
            parts = [header[2], *(part.strip(" \t\"'") for part in header[3].split(".")[1:])]
            if len(parts) == 1:
                table = parts[0]
                counts[table] = counts.get(table, -1) + 1
                yield line, (table, counts[table], None)
            else:
                table = ".".join(parts)
                yield line, (parts[0], counts.get(parts[0], 0), parts[1])
                counts[table] = 0 if header[2] == "packs" else counts.get(parts[0], 0)
                yield line, (table, counts[table], None)
        elif key := _KEY.match(content):
            yield line, (table, counts[table], key[1])
