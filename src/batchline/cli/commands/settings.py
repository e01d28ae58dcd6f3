"""`batchline settings`: all settings, and where each comes from."""

from collections.abc import Iterator
from typing import Any

import typer

from batchline.cli import options
from batchline.cli.display.console import out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.server_settings import read_settings
from batchline.config.definitions import settings_of
from batchline.config.settings import Settings
from batchline.secrets.masking import masked_text


def register(app: typer.Typer) -> None:
    app.command("settings", rich_help_panel=options.PANEL_SET_UP)(show)


def show(
    context: typer.Context,
    config: options.Config = None,
    upstream: options.Upstream = None,
    listen: options.Listen = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show the settings that `serve` and `worker` would have, and where each comes from, without secrets."""
    with reported_errors(as_json):
        settings = read_settings(context.params)
        rows = [
            {"setting": path, "value": masked_text(value), "origin": origin}
            for path, value, origin in (*_given(context), *_loaded(settings))
        ]
        if as_json:
            print_json({"data": rows})
            return
        for row in rows:
            out().print(f"{row['setting']} = {row['value']}  # {row['origin']}", markup=False)


def _given(context: typer.Context) -> Iterator[tuple[str, str, str]]:
    """The settings that are not in the file."""
    for key, each in settings_of(Settings).items():
        if (value := context.params[key]) is not None:
            source = context.get_parameter_source(key)
            by_variable = source is not None and source.name == "ENVIRONMENT"
            yield key, each.kind.display(value), each.variable_name() if by_variable else each.flag_name


def _loaded(settings: Settings) -> Iterator[tuple[str, str, str]]:
    server = settings.server
    tables: dict[str, Any] = {"server": server, "worker": settings.worker, "limits": server.limits}
    tables |= {"traces": settings.traces}
    tables |= {f"upstreams[{number}]": each for number, each in enumerate(server.upstreams)}
    tables |= {f"budgets[{number}]": each for number, each in enumerate(server.budgets)}
    tables |= {f"operations[{number}]": each for number, each in enumerate(server.operations)}
    tables |= {f"packs.{each.name}": each for each in server.packs}
    tables |= {f"stages.{each.name}": each for each in server.stages}
    for table, values in tables.items():
        for key, each in settings_of(type(values)).items():
            path = f"{table}.{key}"
            if each.in_file:
                yield path, each.kind.display(getattr(values, key)), settings.origins.get(path, "default")
