"""Write the reference of the Python library's names from their signatures and docstrings.

    python -m tools.python_reference

The whole page is written: docs/reference/python-names.md. Signatures are those of the source, because how
Python prints a type depends on its version.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batchline

PAGE = Path(__file__).parents[1] / "docs/reference/python-names.md"
_HEAD = """# Every name of the Python library

This page is written by `make format` from the signatures and docstrings of `batchline`.
[Python library](python.md) explains them.
"""
# The library makes these; users do not.
_MADE = frozenset(
    ("AppWorker", "BatchProgress", "Context", "EndedBatch", "ItemError", "ItemResult", "SubmittedBatch")
)


class Undocumented(Exception):
    """A public name has no docstring."""


def rendered() -> str:
    """The page. Raises Undocumented."""
    names = sorted(name for name in batchline.__all__ if not name.startswith("_"))
    return "\n".join((_HEAD, *(line for name in names for line in _name(name))))


def _name(name: str) -> Iterator[str]:
    found = getattr(batchline, name)
    source = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    if not isinstance(source, ast.ClassDef):
        yield from (f"## `{name}`\n", f"    {_call(name, source)}\n", f"{_text(name, found)}\n")
        return
    yield f"## `{name}`\n"
    if name not in _MADE and (constructor := _constructor(name, source)):
        yield f"    {constructor}\n"
    yield f"{_text(name, found)}\n"
    if fields := ", ".join(_fields(source)):
        yield f"Fields: {fields}.\n"
    if rows := list(_members(name, found, source)):
        yield from ("| | |", "|---|---|", *rows, "")


def _constructor(name: str, source: ast.ClassDef) -> str | None:
    for node in source.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return _call(name, node)
    return None


def _fields(source: ast.ClassDef) -> Iterator[str]:
    for node in source.body:
        if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            yield f"`{ast.unparse(node.target)}: {ast.unparse(node.annotation)}`"


def _members(name: str, found: type, source: ast.ClassDef) -> Iterator[str]:
    """Methods and properties that the class has of its own. Of overloads, the one with the docstring."""
    for node in source.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
            continue
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if "overload" in decorators:
            continue
        path, value = f"{name}.{node.name}", vars(found)[node.name]
        declared = node.name if "property" in decorators else _call(node.name, node)
        yield f"| `{_escaped(declared)}` | {_escaped(' '.join(_text(path, value).split()))} |"


def _call(name: str, node: Any) -> str:
    arguments: ast.arguments = node.args
    for given in (arguments.posonlyargs, arguments.args):
        if given and given[0].arg == "self":
            del given[0]
    return f"{_awaited(node)}{name}({ast.unparse(arguments)})"


def _awaited(node: ast.AST) -> str:
    if not isinstance(node, ast.AsyncFunctionDef):
        return ""
    yields = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
    return "async for … in " if yields else "await "


def _text(path: str, found: object) -> str:
    if not found.__doc__:
        raise Undocumented(path)
    return inspect.cleandoc(found.__doc__)


def _escaped(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(rendered())
