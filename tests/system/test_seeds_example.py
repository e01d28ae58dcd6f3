"""The script that verifies the documents behind Batchline: every part passes in its short form."""

import subprocess

import pytest

from examples.seeds.__main__ import PARTS
from tests.support.processes import PYTHON
from tests.support.repository import ROOT


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", PARTS)
def test_every_check_of_a_part_holds(part: str) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "examples.seeds", "--short", part],
        capture_output=True,
        text=True,
        timeout=840,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All checks passed." in done.stdout


def test_an_unknown_part_is_refused_with_those_that_exist() -> None:
    done = subprocess.run(
        [PYTHON, "-m", "examples.seeds", "unheard-of"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert "summaries" in done.stderr
