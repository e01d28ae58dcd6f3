"""The command line: what there is, and what all commands have in common."""

import typer

from batchline import __version__
from batchline.cli import (
    audit_command,
    batch_commands,
    doctor_command,
    keys_command,
    limits_commands,
    migrate_command,
    ops_commands,
    run_command,
    serve_command,
    simulate_command,
    worker_command,
)
from batchline.cli.console import out
from batchline.cli.place import set_up_logging

app = typer.Typer(
    name="batchline",
    help="Very large batches on PostgreSQL: every line runs exactly once, whatever crashes on the way.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        out().print(f"batchline {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Say more on stderr."),
) -> None:
    set_up_logging(verbose)


for commands in (
    run_command,
    serve_command,
    worker_command,
    batch_commands,
    ops_commands,
    limits_commands,
    audit_command,
    keys_command,
    doctor_command,
    migrate_command,
    simulate_command,
):
    commands.register(app)


def main() -> None:
    app()
