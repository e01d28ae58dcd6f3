"""How the tests are laid out: what they share is in tests/support, and tests/unit stays quick."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT

FOLDERS = {"unit", "app", "store", "worker", "api", "cli", "dashboard", "system"}
# What a test without a database and without processes has no use for.
NOT_IN_UNIT = {"subprocess", "multiprocessing", "psycopg", "batchline.embedded"}


def modules(folder: Path) -> dict[str, Path]:
    """All modules under `folder`, which stands for the root of the repository."""
    paths = sorted((folder / "tests").rglob("*.py"))
    return {".".join(path.relative_to(folder).with_suffix("").parts): path for path in paths}


def imported(module: str, path: Path) -> Iterator[str]:
    """The modules that a module imports, and for `from a import b` also a.b, which may be one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def is_test(module: str) -> bool:
    return module.startswith("tests.") and module.rsplit(".", 1)[-1].startswith("test_")


def imports_of_test_modules(folder: Path) -> set[tuple[str, str]]:
    found = modules(folder)
    return {
        (module, target)
        for module, path in found.items()
        for target in imported(module, path)
        if target in found and is_test(target)
    }


def reachable(start: str, found: dict[str, Path]) -> set[str]:
    """What a test module imports, by itself or through tests/support."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        module = waiting.pop()
        new = set(imported(module, found[module])) - seen
        seen |= new
        waiting += [each for each in new if each in found]
    return seen


def test_no_module_imports_a_test_module() -> None:
    assert imports_of_test_modules(ROOT) == set()


@pytest.mark.parametrize(
    "line",
    [
        "import tests.unit.test_other",
        "import tests.unit.test_other as other",
        "from tests.unit import test_other",
        "from tests.unit.test_other import shared",
        "from . import test_other",
        "from .test_other import shared",
        "from ..unit.test_other import shared",
        "def test_it():\n    from tests.unit import test_other",
    ],
)
def test_an_import_of_a_test_module_is_found(line: str, tmp_path: Path) -> None:
    unit = tmp_path / "tests" / "unit"
    unit.mkdir(parents=True)
    (unit / "test_other.py").write_text("shared = 1\n")
    (unit / "test_importing.py").write_text(f"{line}\n")
    assert imports_of_test_modules(tmp_path) == {("tests.unit.test_importing", "tests.unit.test_other")}


def test_every_test_module_is_in_one_of_the_folders() -> None:
    folders = {module: module.split(".")[1] for module in modules(ROOT) if is_test(module)}
    assert {module for module, folder in folders.items() if folder not in FOLDERS} == set()


def test_unit_tests_use_no_database_and_no_processes() -> None:
    found = modules(ROOT)
    unit = [module for module in found if module.startswith("tests.unit.")]
    assert unit
    for module in unit:
        assert not reachable(module, found) & NOT_IN_UNIT, module
