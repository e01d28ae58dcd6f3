"""The lint for retired names finds what is planted, and nothing in this repository."""

import shutil
from pathlib import Path

import pytest

from tools import retired_names
from tools.retired_names import in_file


def names(path: str, text: str) -> list[str]:
    return [finding.name for finding in in_file(path, text)]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("src/batchline/worker/x.py", "# The attendant polls.\n", "attendant"),
        ("docs/design.md", "The Switchboard routes.\n", "Switchboard"),
        ("docs/design.md", "A worker stands by.\n", "stands by"),
        ("src/batchline/worker/crew.py", "", "crew"),
        ("src/batchline/worker/x.py", "def at_place(): ...\n", "at_place"),
        ("src/batchline/worker/x.py", "class MostLines: ...\n", "MostLines"),
        ("src/batchline/worker/x.py", 'QUERY = "SELECT 1 AS told"\n', "told"),
        ("src/batchline/worker/x.py", 'QUERY = "SELECT %(most)s"\n', "most"),
        ("src/batchline/store/sql/x.sql", "SELECT 1\nLIMIT %(most_rows)s\n", "most_rows"),
        ("src/batchline/store/sql/x.sql", "WITH asked AS MATERIALIZED (SELECT 1) SELECT 2\n", "asked"),
        ("src/batchline/store/sql/hurry_up.sql", "SELECT 1\n", "hurry_up"),
        ("src/batchline/api/failing.py", "", "failing"),
        ("docs/design.md", "Workers stood by.\n", "stood by"),
        ("docs/design.md", "They hand over lines.\n", "hand over"),
        ("src/batchline/worker/x.py", "def stand_by(): ...\n", "stand_by"),
        ("src/batchline/worker/x.py", "class Kin: ...\n", "Kin"),
        ("src/batchline/worker/x.py", "def work(failing): ...\n", "failing"),
        ("src/batchline/worker/x.py", "places = 1\n", "places"),
        ("src/batchline/worker/x.py", "POSTS = ()\n", "POSTS"),
        ("src/batchline/worker/x.py", "def give_up_all(): ...\n", "give_up_all"),
        ("src/batchline/worker/x.py", "self.gives_up\n", "gives_up"),
        ("src/batchline/worker/x.py", "QUERY = 'SELECT 1 AS told'\n", "told"),
        ("src/batchline/store/functions/x.sql", "CREATE FUNCTION f(asked int) RETURNS int\n", "asked"),
        ("src/batchline/store/functions/x.sql", "DECLARE\n    least int;\n", "least"),
        ("src/batchline/store/sql/x.sql", "SELECT told.id FROM spans told\n", "told"),
        ("Makefile", "# The crew starts.\n", "crew"),
        (".github/workflows/ci.yml", "name: messenger\n", "messenger"),
    ],
)
def test_a_retired_name_is_found(path: str, text: str, found: str) -> None:
    assert set(names(path, text)) == {found}


@pytest.mark.parametrize(
    "path", ["Makefile", ".ci/run", ".github/workflows/ci.yml", "pyproject.toml", "CHANGELOG.md"]
)
def test_files_outside_the_packages_are_searched(path: str) -> None:
    assert retired_names.ROOT / path in retired_names._files(retired_names.ROOT)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/batchline/worker/x.py", "# It is told at most once, and there is a turn.\n"),
        ("src/batchline/worker/x.py", 'TEXT = "what is shown there takes place"\n'),
        ("src/batchline/worker/x.py", "replaced = text.replace(old, new)\n"),
        ("src/batchline/worker/x.py", "counts.most_common(3)\n"),
        ("tests/test_x.py", "def test_a_worker_is_told_at_most_once() -> None: ...\n"),
        ("src/batchline/store/sql/x.sql", "-- hurry: AS told\nSELECT least(1, 2), ' AS told '\n"),
        ("src/batchline/store/sql/x.sql", "SELECT LEAST(1, 2)\n"),
        ("src/batchline/worker/x.py", "http.post(url); failures = 1; kind = Kind.WRONG\n"),
        ("docs/operations.md", "A standby of PostgreSQL is read-only. Keep two standbys.\n"),
        ("docs/design.md", "The skin of the workers; the broken kind.\n"),
    ],
)
def test_ordinary_words_and_replicas_are_fine(path: str, text: str) -> None:
    assert names(path, text) == []


def test_the_program_prints_where_a_name_is_and_what_to_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / "src" / "package" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("clean = True\n\nhungry = False\n")
    assert retired_names.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "src/package/module.py:3: 'hungry' is retired; use needs_refill\n"
    shutil.rmtree(module.parent)
    assert retired_names.main([str(tmp_path)]) == 0


def test_this_repository_has_no_retired_names() -> None:
    assert list(map(str, retired_names.findings(retired_names.ROOT))) == []
