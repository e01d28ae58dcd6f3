"""The mutation suite: its mutants fit the code, and it tells killed mutants from survivors."""

from pathlib import Path

import pytest

from mutants.__main__ import ALL, Copies, judge, main
from mutants.mutant import Mutant, StaleMutant
from tests.support.repository import ROOT

_PAUSE = "src/batchline/worker/pause.py"
_TEST = "tests/unit/test_retry.py"


def test_every_mutant_fits_the_code_and_names_tests_that_exist(tmp_path: Path) -> None:
    for number, mutant in enumerate(ALL):
        copy = tmp_path / str(number) / mutant.file
        copy.parent.mkdir(parents=True)
        copy.write_text((ROOT / mutant.file).read_text())
        mutant.apply(tmp_path / str(number))
        assert copy.read_text() != (ROOT / mutant.file).read_text(), mutant.mistake
        assert mutant.tests
        assert all((ROOT / test).is_file() for test in mutant.tests), mutant.mistake


def test_mutants_are_different() -> None:
    assert len({mutant.mistake for mutant in ALL}) == len(ALL) >= 60
    assert len({(mutant.file, mutant.before, mutant.after) for mutant in ALL}) == len(ALL)


def test_a_mutant_whose_text_has_changed_is_reported() -> None:
    with pytest.raises(StaleMutant, match="found it 0 times"):
        Mutant("a mistake", "Makefile", "no such text", "", ()).apply(ROOT)


@pytest.mark.timeout(600)
def test_a_mutant_is_killed_by_a_test_that_fails_and_survives_tests_that_pass(tmp_path: Path) -> None:
    wrong = Mutant(
        "a grid that is too coarse",
        "src/batchline/upstreams/retry.py",
        "_FINEST = -4",
        "_FINEST = 4",
        (_TEST,),
    )
    harmless = Mutant("nothing", _PAUSE, "class Pause", "class Pause", (_TEST,))
    copies = Copies(tmp_path)
    assert judge(copies, wrong).killed_by == _TEST
    assert judge(copies, harmless).killed_by is None


def test_words_that_match_no_mutant_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-word"]) == 2
    assert "no mutant matches no-such-word" in capsys.readouterr().err
