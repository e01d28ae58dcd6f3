"""The command line: the list of commands, and the options of the program.

To import all commands takes a second, half of it for the server. So a command line loads only the module of
its command. Help and mistyped commands load all of them.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

import typer

from batchline import __version__
from batchline.cli.display.console import out
from batchline.cli.runtime import set_up_logging
from batchline.cli.streams import open_closed_streams

# The modules, in the order of the help, and the commands that each registers.
MODULES = {
    "run": ("run",),
    "serve": ("serve",),
    "worker": ("worker",),
    "batches": ("submit", "status", "watch", "results", "list", "cancel", "pause", "resume"),
    "attempts": ("attempts",),
    "retry": ("retry",),
    "why": ("why",),
    "delete": ("delete",),
    "ops": ("ops",),
    "limits": ("limits",),
    "audit": ("audit",),
    "keys": ("keys",),
    "hooks": ("hooks",),
    "settings": ("settings",),
    "doctor": ("doctor",),
    "migrate": ("migrate",),
    "adopt": ("adopt",),
    "simulate": ("simulate",),
}


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The app with the command that the arguments name, or with all commands if they name none."""
    app = typer.Typer(
        name="batchline",
        help="Very large batches on PostgreSQL: every line runs exactly once, whatever crashes on the way.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    for module in _needed(arguments):
        import_module(f"batchline.cli.commands.{module}").register(app)
    return app


def main() -> None:
    open_closed_streams()
    command_line(sys.argv[1:])()


def _needed(arguments: Sequence[str]) -> list[str]:
    """The modules to import. Options before the command have no values."""
    word = next((argument for argument in arguments if not argument.startswith("-")), None)
    return [module for module, commands in MODULES.items() if word in commands] or list(MODULES)


def _version(requested: bool) -> None:
    if requested:
        out().print(f"batchline {__version__}")
        raise typer.Exit


def _common(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log at level info and above on stderr."),
) -> None:
    set_up_logging(verbose)
