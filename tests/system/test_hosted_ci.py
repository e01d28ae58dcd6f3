"""The hosted CI and the hooks before a commit run what the project supports and what `make lint` runs."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.support.repository import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def read(name: str) -> dict[Any, Any]:
    content = yaml.safe_load((ROOT / name).read_text())
    assert isinstance(content, dict)
    return content


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def test_every_supported_python_is_tested(jobs: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = {
        found[1]
        for classifier in project["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", classifier))
    }
    assert {entry["python"] for entry in jobs["test"]["strategy"]["matrix"]["include"]} == supported


def test_every_supported_postgresql_is_tested(jobs: dict[str, Any]) -> None:
    tested = {entry["postgresql"] for entry in jobs["test"]["strategy"]["matrix"]["include"]}
    assert tested == {"15", "16", "17", "18"}
    assert jobs["test"]["services"]["postgres"]["image"] == "postgres:${{ matrix.postgresql }}"


def test_every_step_runs_something_that_exists(jobs: dict[str, Any]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    made = {command.removeprefix("make ") for command in commands if command.startswith("make ")}
    assert made
    assert made <= targets
    assert ".ci/run" in commands
    assert (ROOT / ".ci" / "run").exists()


def test_every_job_ends_in_time_and_may_only_read(jobs: dict[str, Any]) -> None:
    assert all(job["timeout-minutes"] for job in jobs.values())
    assert read(".github/workflows/ci.yml")["permissions"] == {"contents": "read"}


def test_the_hooks_are_those_of_make_lint_and_need_no_network() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}
    recipe = MAKEFILE.split("\nlint: ")[1].split("\n\n")[0]
    linted = set(re.findall(r"\$\(BIN\)/(ruff \w+|python -m \S+|[\w-]+)", recipe))
    hooked = {
        found[1]
        for hook in repository["hooks"]
        if (found := re.match(r"\.venv/bin/(ruff \w+|python -m \S+|[\w-]+)", hook["entry"]))
    }
    assert hooked == linted
