"""The documents name only files, tests and versions that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.store import schema
from tests.support.repository import ROOT

PACKAGE = ROOT / "src/batchline"
CODE = ("src", "tests", "chaos", "benchmarks", "examples", "tools")
# Folders that commands create.
MADE = {".venv", ".bench", "demo", "dist"}


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def missing(text: str) -> Iterator[str]:
    """Names of files and tests in a document, between backticks, that do not exist."""
    for name in re.findall(r"`([\w./*-]+)`", text):
        if re.fullmatch(r"test_[\w*]+(\.py)?", name):
            exists = any((ROOT / "tests").rglob(f"{name.removesuffix('.py')}.py"))
        elif re.fullmatch(r"\w+\.sql", name):
            exists = any(True for folder in CODE for _ in (ROOT / folder).rglob(name))
        elif "/" in name and (top := name.split("/")[0]) and top not in MADE and _is_folder(top):
            exists = any(ROOT.glob(name)) or any(PACKAGE.glob(name))
        else:
            continue
        if not exists:
            yield name


def _is_folder(name: str) -> bool:
    return (ROOT / name).is_dir() or (PACKAGE / name).is_dir()


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_tests_that_a_document_names_exist(document: Path) -> None:
    assert list(missing(document.read_text())) == []


def test_a_name_of_no_file_is_found() -> None:
    text = "`worker/worker.py` `worker/nothing.py` `test_claim` `test_nothing` `settle.sql` `nothing.sql`"
    assert list(missing(text)) == ["worker/nothing.py", "test_nothing", "nothing.sql"]


def test_the_database_reference_is_of_the_newest_schema_version() -> None:
    assert f"Version {schema.HEAD}," in (ROOT / "docs/reference/database.md").read_text()


def test_every_make_target_is_in_the_readme() -> None:
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    readme = (ROOT / "README.md").read_text()
    assert [target for target in targets[1].split() if f"`make {target}`" not in readme] == []
