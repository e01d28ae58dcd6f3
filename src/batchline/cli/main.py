"""The command line: the list of commands, and the options of the program.

To import all commands takes a second, half of it for the server. So a command line loads only the module of
its command. Help and mistyped commands load all of them.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

import typer

from batchline import __version__
from batchline.cli.display.console import err, out
from batchline.cli.help import HelpfulGroup, improve_help
from batchline.cli.log_options import LogJson, Verbose, add_log_options, choice
from batchline.cli.options import Exit
from batchline.cli.streams import drop_unwritten, open_closed_streams

# The modules, in the order of the help, and the commands that each registers.
MODULES = {
    "run": ("run",),
    "pipeline": ("pipeline",),
    "serve": ("serve",),
    "ui": ("ui",),
    "worker": ("worker",),
    "list": ("list",),
    "batches": ("submit", "status", "watch", "results", "cancel", "pause", "resume"),
    "attempts": ("attempts",),
    "change": ("change",),
    "retry": ("retry",),
    "why": ("why",),
    "check": ("check",),
    "delete": ("delete",),
    "prune": ("prune",),
    "du": ("du",),
    "ops": ("ops",),
    "limits": ("limits",),
    "audit": ("audit",),
    "keys": ("keys",),
    "tenants": ("tenants",),
    "hooks": ("hooks",),
    "schedules": ("schedules",),
    "settings": ("settings",),
    "doctor": ("doctor",),
    "migrate": ("migrate",),
    "adopt": ("adopt",),
    "simulate": ("simulate",),
}
# Set by the shell's completion: the line so far is in one of these variables.
_COMPLETING = "_BATCHLINE_COMPLETE"
_LINES = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")
_EXAMPLES = """Examples:

    batchline run prompts.jsonl --upstream http://127.0.0.1:8000/v1
    batchline list
    batchline results @1 -o answers.jsonl

`batchline COMMAND --help` shows the options of a command.
"""


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The app with the command that the arguments name, or with all commands if they name none."""
    app = _app()
    for module in _needed(arguments):
        import_module(f"batchline.cli.commands.{module}").register(app)
    add_log_options(app)
    improve_help(app)
    return app


def main() -> None:
    open_closed_streams()
    try:
        app = _completing(os.environ) if _COMPLETING in os.environ else command_line(sys.argv[1:])
        app(prog_name="batchline")
    except SystemExit as end:
        # Commands report output that they cannot write. This is what they did not notice.
        if drop_unwritten() and not end.code:
            _exit_unwritten("")
        raise
    except OSError as error:
        # Help, the version or a usage error.
        drop_unwritten()
        _exit_unwritten(f": {error.strerror}")


def _app() -> typer.Typer:
    app = typer.Typer(
        name="batchline",
        cls=HelpfulGroup,
        help="Very large batches on PostgreSQL: one result for every line, whatever crashes on the way.",
        epilog=_EXAMPLES,
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    return app


def _completing(environ: Mapping[str, str]) -> typer.Typer:
    """The app that completes a command line. A name needs no module: to load all takes a second."""
    line = next((environ[name] for name in _LINES if name in environ), "")
    words = line.split()[1:]
    needed = _needed(words)
    if len(needed) < len(MODULES):
        return command_line(words)
    app = _app()
    for command in (each for commands in MODULES.values() for each in commands):
        app.command(command)(_not_run)
    return app


def _not_run() -> None:
    return


def _exit_unwritten(reason: str) -> NoReturn:
    # Standard error may be what cannot be written.
    with suppress(OSError):
        err().print(f"error: the output cannot be written{reason}", markup=False)
    drop_unwritten()
    sys.exit(Exit.BAD_INPUT)


def _needed(arguments: Sequence[str]) -> list[str]:
    """The modules to import. Options before the command have no values."""
    word = next((argument for argument in arguments if not argument.startswith("-")), None)
    return [module for module, commands in MODULES.items() if word in commands] or list(MODULES)


def _version(requested: bool) -> None:
    if requested:
        out().print(f"batchline {__version__}")
        raise typer.Exit


def _common(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
    verbose: Verbose = False,
    log_json: LogJson = False,
) -> None:
    choice(context).add(verbose, log_json)
