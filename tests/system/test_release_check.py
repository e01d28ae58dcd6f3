"""A wheel that lacks something, or brings something along, is not released."""

import tomllib
from pathlib import Path

import pytest

from tools.release_check import ROOT, packaged_files, wheel_faults

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
METADATA = "\n".join(
    [
        f"Name: {PROJECT['name']}",
        f"Version: {PROJECT['version']}",
        f"Summary: {PROJECT['description']}",
        f"Requires-Python: {PROJECT['requires-python']}",
        f"License-Expression: {PROJECT['license']}",
        "Description-Content-Type: text/markdown",
        *(f"Requires-Dist: {requirement}" for requirement in PROJECT["dependencies"]),
        "",
        "The description.",
    ]
)
ENTRY_POINTS = "[console_scripts]\nbatchline = batchline.cli.main:main\n"
NAMES = [*sorted(packaged_files(ROOT)), "batchline-0.1.0.dist-info/licenses/LICENSE"]


def faults(names: list[str], metadata: str = METADATA, entry_points: str = ENTRY_POINTS) -> list[str]:
    return list(wheel_faults(names, metadata, entry_points, ROOT))


def test_a_complete_wheel_has_no_faults() -> None:
    assert faults(NAMES) == []


def test_the_files_that_are_no_python_belong_to_the_package() -> None:
    suffixes = {Path(name).suffix for name in NAMES}
    assert {".py", ".sql", ".typed", ".mako"} <= suffixes
    assert "batchline/store/migrations/versions/0001_core.py" in NAMES


@pytest.mark.parametrize("suffix", [".sql", "0001_core.py", "py.typed", "env.py", "LICENSE"])
def test_a_wheel_that_lacks_a_file_is_refused(suffix: str) -> None:
    missing = next(name for name in NAMES if name.endswith(suffix))
    assert faults([name for name in NAMES if name != missing])


@pytest.mark.parametrize("name", ["tests/conftest.py", "benchmarks/bench.py", "batchline/tests/test_x.py"])
def test_a_wheel_with_something_else_is_refused(name: str) -> None:
    assert any(name in fault for fault in faults([*NAMES, name]))


@pytest.mark.parametrize("field", ["Version", "Requires-Python", "License-Expression", "Requires-Dist"])
def test_metadata_that_differ_from_the_project_are_refused(field: str) -> None:
    lines = METADATA.splitlines()
    lines.remove(next(line for line in lines if line.startswith(f"{field}:")))
    assert len(faults(NAMES, metadata="\n".join(lines))) == 1


def test_a_wheel_without_the_command_is_refused() -> None:
    assert faults(NAMES, entry_points="") == ["the command batchline is missing from the entry points"]
