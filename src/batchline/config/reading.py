"""From a file and the environment to settings."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchline.config import keys, variables
from batchline.config.errors import SettingsError
from batchline.config.operation_tables import read_operations, read_packs, wanted_upstreams
from batchline.config.settings import LimitSettings, ServerSettings
from batchline.config.source import Source
from batchline.config.upstream_tables import read_upstreams
from batchline.config.values import Reader

DEFAULT_NAME = "batchline.toml"


def load(path: Path | None, environ: Mapping[str, str]) -> ServerSettings:
    """The settings in the file, if one is given, under those of the environment, over the defaults."""
    text = "" if path is None else _content(path)
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from None
    return _settings(Source(str(path), text, tables), environ)


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: it is not UTF-8") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _settings(source: Source, environ: Mapping[str, str]) -> ServerSettings:
    source.check_tables()
    server = _table(source, environ, "server", keys.SERVER, variables.SERVER_PREFIX)
    operations = read_operations(source)
    packs = read_packs(source)
    upstreams = read_upstreams(source, environ, wanted_upstreams(source, operations, packs))
    limits = _table(source, environ, "limits", keys.LIMITS, variables.LIMITS_PREFIX)
    return ServerSettings(
        upstreams=tuple(upstreams),
        operations=tuple(operations),
        packs=tuple(packs),
        limits=LimitSettings(**limits),
        **server,
    )


def _table(
    source: Source, environ: Mapping[str, str], name: str, readers: dict[str, Reader], prefix: str
) -> dict[str, Any]:
    """A table that there is once, with what the environment says of it."""
    values = source.table(name, 0, source.tables.get(name, {}), readers)
    values.update(variables.overrides(environ, prefix, readers))
    return values
