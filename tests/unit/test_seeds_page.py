"""docs/seeds.md: every location and every test that it names exists, and every requirement has both."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PAGE = ROOT / "docs" / "seeds.md"
SOURCES = ROOT / "src" / "batchline"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LOCATION = re.compile(r"`([\w/]+\.(?:py|sql))(?::(\w+))?`")


def rows() -> list[tuple[str, str, str]]:
    """The rows of all tables: requirement, place, test."""
    cells = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ")
    ]
    assert all(len(row) == 3 for row in cells), [row for row in cells if len(row) != 3]
    return [(row[0], row[1], row[2]) for row in cells if row[0] != "requirement"]


@cache
def definitions(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    )


@pytest.mark.parametrize(("requirement", "locations", "tests"), rows(), ids=lambda cell: cell[:60])
def test_a_requirement_names_places_and_tests_that_exist(
    requirement: str, locations: str, tests: str
) -> None:
    named = TEST.findall(tests)
    assert len(named) == tests.count("`") / 2 > 0, tests
    for file, name in named:
        assert name in definitions(ROOT / file), f"{file} has no {name}"
    located = LOCATION.findall(locations)
    assert len(located) == locations.count("`") / 2 > 0, locations
    for file, name in located:
        assert (SOURCES / file).is_file(), f"{file} does not exist"
        assert not name or name in definitions(SOURCES / file), f"{file} has no {name}"


def test_the_page_has_rows() -> None:
    assert len(rows()) > 50
