"""`-v` and `--log-json` in any position: before the command, after it, and after a command of a group."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from batchline.cli.logs import set_up_logging

PANEL = "Log"
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Log at level info and above on stderr.", rich_help_panel=PANEL),
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Log one JSON object per line.", rich_help_panel=PANEL)
]
_CONTEXT = "log_context"


class LogChoice:
    """What the command line says about the log, in all positions together."""

    def __init__(self) -> None:
        self.verbose = False
        self.as_json = False

    def add(self, verbose: bool, as_json: bool) -> None:
        self.verbose |= verbose
        self.as_json |= as_json
        set_up_logging(self.verbose, self.as_json)

    def arguments(self) -> list[str]:
        """The same choice for another process."""
        return [*(["--verbose"] if self.verbose else []), *(["--log-json"] if self.as_json else [])]


def choice(context: typer.Context) -> LogChoice:
    return context.find_root().ensure_object(LogChoice)


def add_log_options(app: typer.Typer) -> None:
    """Give all commands of the app and of its groups these options."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_log_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_log_options(group.typer_instance)


def _with_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command)
    if "log_json" in signature.parameters:
        # The groups are made once, and the app for each command line.
        return command
    known = next(
        (name for name, each in signature.parameters.items() if each.annotation is typer.Context), None
    )
    more = {"verbose": Verbose, "log_json": LogJson, **({} if known else {_CONTEXT: typer.Context})}

    @wraps(command)
    def logging_command(*, verbose: bool, log_json: bool, **given: Any) -> Any:
        choice(given[known] if known else given.pop(_CONTEXT)).add(verbose, log_json)
        return command(**given)

    added = [_parameter(name, annotation) for name, annotation in more.items()]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
    logging_command.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    logging_command.__annotations__ = {**command.__annotations__, **more}
    return logging_command


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if name == _CONTEXT else False
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
