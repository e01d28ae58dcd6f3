"""Help that reads well: paragraphs that fill the width, flags without a type, examples as they are typed."""

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


def _without_types(parameters: list[Any]) -> list[Any]:
    """Without `<bool>` behind flags, which take no value."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


class HelpfulCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class HelpfulGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def improve_help(app: typer.Typer) -> None:
    """Of all commands of the app and of its groups."""
    for command in app.registered_commands:
        command.cls = HelpfulCommand
        if command.callback is not None:
            command.help = filled(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        group.cls = HelpfulGroup
        if group.typer_instance is not None:
            improve_help(group.typer_instance)


def filled(text: str) -> str:
    """Line breaks within a paragraph are not those of the terminal. Indented paragraphs are examples, and
    stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each if each.startswith(" ") else each.replace("\n", " ") for each in paragraphs)
