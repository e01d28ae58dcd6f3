"""The process of a Python hook: calls a function with the event, which comes as JSON on standard input.

    python -P -m batchline.hooks.call module:function [--check]

A target without a colon is the name of an entry point in the group `batchline.on_end`. `--check` only finds
the function.
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

GROUP = "batchline.on_end"


class _NotFound(Exception):
    """The target names no function. The message is for a person."""


def main() -> None:
    target, *options = sys.argv[1:]
    # Last, so that a file in this folder replaces no installed module.
    sys.path.append(os.getcwd())
    try:
        function = find(target)
    except _NotFound as error:
        sys.exit(str(error))
    if "--check" not in options:
        result = function(json.load(sys.stdin))
        if inspect.isawaitable(result):
            asyncio.run(_finished(result))


def find(target: str) -> Callable[[Any], Any]:
    module, colon, name = target.partition(":")
    if not colon:
        (module, name), target = _entry_point(target), f"entry point {target}"
    try:
        found = reduce(getattr, name.split("."), import_module(module))
    except (Exception, SystemExit) as error:
        # The module is the user's, and may raise anything.
        raise _NotFound(f"cannot import it: {type(error).__name__}: {error}".splitlines()[0]) from error
    if not callable(found):
        raise _NotFound(f"{name} in {module} is not a function")
    function: Callable[[Any], Any] = found
    return function


def _entry_point(name: str) -> tuple[str, str]:
    found = {each.name: each for each in entry_points(group=GROUP)}
    if name not in found:
        known = f"installed are {', '.join(sorted(found))}" if found else "none is installed"
        raise _NotFound(f"give module:function, or the name of an entry point in {GROUP}; {known}")
    return found[name].module, found[name].attr


async def _finished(result: Any) -> None:
    await result


if __name__ == "__main__":
    main()
