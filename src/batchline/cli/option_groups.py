"""Groups of options: a command takes a frozen dataclass, and typer sees its fields as options."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command for typer: parameters that are groups are replaced by the fields of these groups."""
    signature = inspect.signature(command)
    groups = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {name: _made(group, given) for name, group in groups.items()}
        command(**given, **made)

    parameters = [each for one in signature.parameters.values() for each in _flat(one, groups)]
    flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in parameters}
    return flat


def given_options(group: Any) -> dict[str, Any]:
    """The options of a group that the user gave: those that are not None."""
    values = {each.name: getattr(group, each.name) for each in fields(group)}
    return {name: value for name, value in values.items() if value is not None}


def _made(group: Any, given: dict[str, Any]) -> Any:
    """The group, with its fields taken out of `given`."""
    return group(**{each.name: given.pop(each.name) for each in fields(group)})


def _flat(parameter: inspect.Parameter, groups: dict[str, Any]) -> Iterator[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    if parameter.name not in groups:
        yield parameter.replace(kind=kind)
        return
    for each in fields(groups[parameter.name]):
        yield inspect.Parameter(each.name, kind, default=each.default, annotation=each.type)
