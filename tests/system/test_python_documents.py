"""The pages about the Python library display programs of examples/python, which type checkers accept.

What the pages run, and what it prints, is in test_documented_commands.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.console import blocks, script_of
from tests.support.processes import PYTHON
from tests.support.repository import ROOT

PROGRAMS = ROOT / "examples" / "python"
HOW_TO = ROOT / "docs" / "how-to"
NOTEBOOK = HOW_TO / "python-notebook.md"
PAGES = [
    ROOT / "docs" / "python-tutorial.md",
    HOW_TO / "coming-from.md",
    *sorted(page for page in HOW_TO.glob("python-*.md") if page.name != "python-models.md"),
]
# Pages without a program to run: the cells of a notebook, and words only.
NOT_RUN = {NOTEBOOK, HOW_TO / "python-when-not.md"}
# Django has no types.
UNTYPED = {"django_shop.py"}
TYPED = [path.name for path in sorted(PROGRAMS.glob("*.py")) if path.name not in UNTYPED]


def displayed(page: Path) -> dict[str, str]:
    """The Python programs in a page by the name of their file."""
    return {
        str(value): "\n".join(block.content) + "\n"
        for block in blocks(page)
        for kind, value in block.directives
        if kind == "file" and str(value).endswith(".py")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_displays_programs_as_they_are(page: Path) -> None:
    for name, text in displayed(page).items():
        assert (PROGRAMS / name).read_text() == text, name


def test_every_program_is_in_a_page() -> None:
    found = {name for page in PAGES for name in displayed(page)}
    assert {path.name for path in PROGRAMS.glob("*.py")} == found


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_RUN], ids=lambda page: page.stem)
def test_a_page_has_an_example_that_runs(page: Path) -> None:
    assert any(command.expected for command in script_of(page).commands)


def test_the_page_about_notebooks_displays_the_cells_of_one() -> None:
    cells = json.loads((PROGRAMS / "lengths.ipynb").read_text())["cells"]
    found = ["\n".join(block.content) for block in blocks(NOTEBOOK) if block.kind == "python"]
    assert ["".join(cell["source"]) for cell in cells] == found


def test_mypy_accepts_the_programs(tmp_path: Path) -> None:
    command = [PYTHON, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={tmp_path}", *TYPED]
    done = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_accepts_the_programs() -> None:
    command = ["pyright", "--pythonpath", PYTHON, *TYPED, str(ROOT / "examples" / "bulk_import")]
    done = subprocess.run(command, cwd=PROGRAMS, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
