"""Finds the app that `module:name` means."""

import sys
import traceback
from importlib import import_module
from pathlib import Path

from batchline.app.batchline import Batchline
from batchline.operations.errors import InvalidApp


def load_app(target: str) -> Batchline:
    """Import an app. Modules of the working folder are found, too. Raises InvalidApp, also for any error of
    the module itself."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InvalidApp(f"{target!r} names no app; give a module and a name in it, such as tasks:app")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = import_module(module_name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InvalidApp(_import_failure(module_name, error)) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InvalidApp(f"module {module_name!r} has no {name!r}; give the name of its Batchline object")
        found = getattr(found, part)
    if not isinstance(found, Batchline):
        raise InvalidApp(f"{target} is of type {type(found).__name__}, not a Batchline app")
    return found


def _import_failure(module_name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and module_name.startswith(error.name):
        return f"there is no module {error.name!r} in {Path.cwd()} or among the installed ones"
    steps = traceback.extract_tb(error.__traceback__)
    at = f" ({steps[-1].filename}, line {steps[-1].lineno})" if steps else ""
    said = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        said, at = error.msg, f" ({error.filename}, line {error.lineno})"
    return f"module {module_name!r} cannot be imported: {type(error).__name__}: {said}{at}"
