"""Names of what an app defines by decorating functions."""

import re
from collections.abc import Callable
from typing import Any

from batchline.operations.errors import InvalidApp

_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
MAX_NAME = 63


def checked_name(what: str, function: Callable[..., Any], name: str | None) -> str:
    """The name that was given, or that of the function. Raises InvalidApp."""
    if name is None:
        name = getattr(function, "__name__", None)
        if name is None:
            raise InvalidApp(f'{function!r} has no name; give it one: name="…"')
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise InvalidApp(
            f"{name!r} cannot be the name of {what}: it must match {_NAME.pattern} and have at most"
            f' {MAX_NAME} characters. Give another one: name="…"'
        )
    return name


def function_home(function: Callable[..., Any]) -> tuple[str, str]:
    """The module and the name within it: the same if the same code is run again, as in a notebook."""
    return (
        getattr(function, "__module__", None) or "",
        getattr(function, "__qualname__", None) or repr(function),
    )
