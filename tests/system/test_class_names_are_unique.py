"""A class name means one thing in the whole tree. Tests and examples are not searched."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())

SEARCHED = ("src", "chaos", "benchmarks", "mutants", "tools")


def test_no_two_classes_have_the_same_name() -> None:
    found = defaultdict(list)
    for path in (path for folder in SEARCHED for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
