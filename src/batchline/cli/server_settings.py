"""The settings of the server and its worker: the file, the environment, and what the command line adds."""

import os
from dataclasses import replace
from pathlib import Path

from batchline.cli.display.console import CommandError
from batchline.config import DEFAULT_NAME, SettingsError, load, missing_keys
from batchline.config.settings import ANY_MODEL, ServerSettings, UpstreamSettings
from batchline.governance import packs
from batchline.governance.registry import Registry
from batchline.upstreams import urls

# The upstream of `--upstream`: for every model that no other names.
_COMMAND_LINE = "default"


def find_config(config: Path | None) -> Path | None:
    """The file that was named, or the one in this folder, if there is one."""
    if config is not None:
        return config.absolute()
    usual = Path(DEFAULT_NAME).absolute()
    return usual if usual.is_file() else None


def server_settings(config: Path | None, objects: str | None) -> ServerSettings:
    try:
        settings = load(config, os.environ)
    except SettingsError as error:
        raise CommandError(str(error)) from error
    return settings if objects is None else replace(settings, objects=objects)


def with_upstream(settings: ServerSettings, upstream: str | None) -> ServerSettings:
    """An upstream of the command line takes every model that no other names."""
    if upstream is None:
        return settings
    try:
        urls.parse(upstream)
    except urls.InvalidUpstream as error:
        raise CommandError(str(error)) from error
    mine = UpstreamSettings(_COMMAND_LINE, upstream)
    return replace(settings, upstreams=(*without_any(settings).upstreams, mine))


def without_any(settings: ServerSettings) -> ServerSettings:
    """The upstreams with the models that they name, and no more."""
    named = [
        replace(upstream, models=tuple(model for model in upstream.models if model != ANY_MODEL))
        for upstream in settings.upstreams
        # Those without any from the start are there for operations.
        if upstream.models != (ANY_MODEL,)
    ]
    return replace(settings, upstreams=tuple(named))


def registry(settings: ServerSettings) -> Registry:
    """The operations of the settings, checked."""
    try:
        return packs.registry(settings)
    except SettingsError as error:
        raise CommandError(str(error)) from error


def check_keys(settings: ServerSettings) -> None:
    if missing := missing_keys(settings, os.environ):
        raise CommandError("; ".join(missing))
