"""Write the reference of all commands from their definitions.

    python -m tools.command_reference

The whole page is written: docs/reference/commands.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from batchline.cli.main import command_line

PAGE = Path(__file__).parents[1] / "docs/reference/commands.md"
_HEAD = """# Every command and option

This page is written by `make format` from the help of the program.
[Command line](command-line.md) explains the commands.

All commands also have `--verbose` (`-v`), `--log-json` and `--help` (`-h`).
"""
# What every command has.
_COMMON = {"verbose", "log_json", "help"}
# What typer puts behind the help of an option.
_EXTRA = re.compile(r" *\[(?P<facts>[^\[]*(?:default|env var|required|x[<>]=?)[^\[]*)\]$")


def rendered() -> str:
    """The page. The types of commands are typer's own, which it does not export."""
    program: Any = typer.main.get_command(command_line())
    return "\n".join((_HEAD, *_commands(program, "batchline")))


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from (f"## `{path} {name}`\n", _text(command), "")
            yield from _commands(command, f"{path} {name}")
        else:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    parameters = [each for each in command.get_params(context) if each.name not in _COMMON]
    yield f"{'#' * (path.count(' ') + 1)} `{path}`\n"
    yield f"    {path} {' '.join(command.collect_usage_pieces(context))}\n"
    yield _text(command)
    yield ""
    for kind in ("argument", "option"):
        chosen = [each for each in parameters if each.param_type_name == kind and not each.hidden]
        if chosen:
            yield from (f"| {kind} | |", "|---|---|", *(_row(each, context) for each in chosen), "")


def _text(command: Any) -> str:
    return str(command.help).rstrip()


def _row(parameter: Any, context: Any) -> str:
    declaration, help = parameter.get_help_record(context)
    if parameter.param_type_name == "argument":
        # Without its type, in which the help ends.
        declaration = declaration.partition(" <")[0]
    extra = _EXTRA.search(help)
    text = help[: extra.start()] if extra else help
    facts = f" ({extra['facts'].replace('env var:', 'variable')})" if extra else ""
    return f"| `{_escaped(declaration)}` | {_escaped(text + facts)} |"


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(rendered())
