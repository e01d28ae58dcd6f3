"""The settings of a command: the file, the environment and the command's flags."""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchline.cli.display.console import CommandError
from batchline.config import DEFAULT_NAME, SettingsError, load, missing_keys
from batchline.config.settings import ANY_MODEL, ServerSettings, Settings, UpstreamSettings, WorkerSettings
from batchline.governance import packs
from batchline.governance.operations import InvalidOperation, Operation
from batchline.governance.registry import Registry
from batchline.hooks.hook import HookRefused, Hooks, hooks_of
from batchline.upstreams import urls

# The name of the upstream of `--upstream`.
_COMMAND_LINE = "default"


def read_settings(options: Mapping[str, Any]) -> Settings:
    """All settings: the file, the environment and a command's options, by their names.

    The file is the one that `config` names, or else batchline.toml in this folder. Options that are not
    settings are ignored.
    """
    usual = Path(DEFAULT_NAME)
    path = options.get("config") or (usual if usual.is_file() else None)
    found = None if path is None else path.absolute()
    try:
        return load(found, os.environ, {**options, "config": found})
    except SettingsError as error:
        raise CommandError(str(error)) from error


def with_upstream(settings: ServerSettings, upstream: str | None, **more: Any) -> ServerSettings:
    """The settings with the upstream of `--upstream`, which takes every model that no other names."""
    if upstream is None:
        return settings
    try:
        urls.parse(upstream)
    except urls.InvalidUpstream as error:
        raise CommandError(str(error)) from error
    mine = UpstreamSettings(_COMMAND_LINE, upstream, **more)
    return replace(settings, upstreams=(*without_any(settings).upstreams, mine))


def with_provider(settings: ServerSettings, upstream: str | None, **given: Any) -> ServerSettings:
    """The settings with the upstream of `--upstream` as the provider of `--provider`."""
    if upstream is None:
        raise CommandError("--provider: give --upstream URL, or set the provider of an upstream in the file")
    return with_upstream(
        settings, upstream, **{key: value for key, value in given.items() if value is not None}
    )


def without_any(settings: ServerSettings) -> ServerSettings:
    """The settings with upstreams that serve only the models that they name."""
    named = [
        replace(upstream, models=tuple(model for model in upstream.models if model != ANY_MODEL))
        for upstream in settings.upstreams
        # An upstream without models is for operations: it stays.
        if upstream.models != (ANY_MODEL,)
    ]
    return replace(settings, upstreams=tuple(named))


def registry(settings: ServerSettings, more: Sequence[Operation] = ()) -> Registry:
    """The operations of the settings, and `more`. Raises CommandError for a mistake in one."""
    try:
        return packs.registry(settings, more)
    except (SettingsError, InvalidOperation) as error:
        raise CommandError(str(error)) from error


def hooks_in(settings: WorkerSettings) -> Hooks:
    """The hooks of the settings. Raises CommandError for one that cannot be run."""
    try:
        return hooks_of(settings, os.environ)
    except HookRefused as error:
        raise CommandError(str(error)) from error


def check_hook_file(settings: Settings) -> None:
    """Whoever can write the file decides what hooks run as this user. So a file that another user could have
    written must have no hooks."""
    check_own_file(settings, settings.config, ("worker.on_end", "worker.on_end_command"), "hooks")


def check_own_file(settings: Settings, path: Path | None, keys: Sequence[str], what: str) -> None:
    """Raises CommandError if one of the keys is in the file, and another user could have written that:
    batchline.toml is read unasked from the current folder."""
    origins = (settings.origins.get(key, "") for key in keys)
    if path is None or not any(origin.startswith(str(path)) for origin in origins):
        return
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CommandError(
            f"{path} has {what}, and another user can write it; run `chown` and `chmod go-w` on it first"
        )


def check_keys(settings: ServerSettings) -> None:
    if missing := missing_keys(settings, os.environ):
        raise CommandError("; ".join(missing))
