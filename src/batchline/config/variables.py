"""The environment, which overrides the file: BATCHLINE_SERVER_KEY, BATCHLINE_LIMITS_KEY and
BATCHLINE_UPSTREAM_NAME_KEY."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from batchline.config.errors import SettingsError
from batchline.config.keys import UPSTREAM
from batchline.config.values import Reader

SERVER_PREFIX = "BATCHLINE_SERVER_"
LIMITS_PREFIX = "BATCHLINE_LIMITS_"
_UPSTREAM_PREFIX = "BATCHLINE_UPSTREAM_"
_LISTS = frozenset({"windows", "models"})
_TEXTS = frozenset({"objects", "operation_window", "contact_admin", "base_url", "api_key_env"})


def overrides(environ: Mapping[str, str], prefix: str, readers: dict[str, Reader]) -> dict[str, Any]:
    """The values of the variables that begin so."""
    values = {}
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        key = variable.removeprefix(prefix).lower()
        if key not in readers:
            # Of an upstream it may be another's, whose name begins with this one's: see check_strangers.
            if prefix in (SERVER_PREFIX, LIMITS_PREFIX):
                raise SettingsError(f"environment variable {variable}: there is no such setting")
            continue
        try:
            values[key] = readers[key](_from_text(key, text))
        except ValueError as error:
            raise SettingsError(f"environment variable {variable}: {error}") from None
    return values


def check_strangers(environ: Mapping[str, str], names: Sequence[str]) -> None:
    """A variable for an upstream or a key that is not there."""
    known = {prefix_of(name) + key.upper() for name in names for key in UPSTREAM if key != "name"}
    for variable in environ:
        if variable.startswith(_UPSTREAM_PREFIX) and variable not in known:
            raise SettingsError(f"environment variable {variable}: there is no such upstream or setting")


def prefix_of(name: str) -> str:
    """What the variables of an upstream begin with."""
    return _UPSTREAM_PREFIX + re.sub(r"[^A-Za-z0-9]", "_", name).upper() + "_"


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
