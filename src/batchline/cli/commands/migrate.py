"""`batchline migrate`: upgrades and downgrades the schema."""

from typing import Annotated

import typer

from batchline.cli import options
from batchline.cli.display.console import out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.runtime import open_runtime
from batchline.store import migrate, schema
from batchline.store.address import parse

commands = typer.Typer(help="Upgrade or downgrade the schema.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="migrate", rich_help_panel=options.PANEL_SET_UP)


@commands.command("up")
def up(
    revision: Annotated[str, typer.Argument(help="The revision to upgrade to.")] = "head",
    rolling: Annotated[
        bool,
        typer.Option(
            "--rolling",
            help="Programs of the version before are running: change nothing if they could not go on.",
        ),
    ] = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Upgrade the schema."""
    with reported_errors(as_json), open_runtime(database, data_dir, migrated=False) as runtime:
        migrate.up(runtime.url, revision, rolling=rolling)
        _tell(runtime.url, as_json)


@commands.command("down")
def down(
    revision: Annotated[str, typer.Argument(help="The revision to go back to; `base` removes everything.")],
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Downgrade the schema. Data that only newer revisions have is lost."""
    with reported_errors(as_json), open_runtime(database, data_dir, migrated=False) as runtime:
        migrate.down(runtime.url, revision)
        _tell(runtime.url, as_json)


@commands.command("status")
def status(
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show the revision of the schema."""
    with reported_errors(as_json), open_runtime(database, data_dir, migrated=False) as runtime:
        _tell(runtime.url, as_json)


def _tell(url: str, as_json: bool) -> None:
    found = schema.status(url)
    name = parse(url).schema
    if as_json:
        print_json(
            {
                "schema": name,
                "current": found.current,
                "head": schema.HEAD,
                "up_to_date": found.up_to_date,
                "usable": found.usable,
                "compatible_from": found.compatible_from,
            }
        )
        return
    current = f"version {found.current}" if found.current else "no tables"
    out().print(f"schema {name}: {current}; newest version: {schema.HEAD}")
