"""The report of the benchmarks keeps what a run did not renew, and says which run each figure comes from."""

import subprocess
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.contest import Figure, Series
from benchmarks.report import Compared, Results, Run


def _run(date: str) -> Run:
    return Run(date, f"python -m benchmarks # {date}", False, {}, {}, {})


def _compared(name: str, run: Run, value: float) -> Compared:
    figure = Figure("a figure", value, "×", None, [Series("Batchline", "items/s", [value])])
    return Compared(name, "How.", 1.0, run.date, [figure])


def test_a_run_of_some_comparisons_renews_these_alone() -> None:
    first, second = _run("monday"), _run("tuesday")
    known = Results(
        [first], [_compared("a", first, 1), _compared("b", first, 2), _compared("gone", first, 3)]
    )

    results = report.renewed(known, second, [_compared("b", second, 4)], ["a", "b"])

    assert [(kept.name, kept.run, kept.figures[0].value) for kept in results.comparisons] == [
        ("a", "monday", 1),
        ("b", "tuesday", 4),
    ]
    assert {run.date for run in results.runs} == {"monday", "tuesday"}


def test_a_run_of_which_nothing_is_left_is_forgotten() -> None:
    first, second = _run("monday"), _run("tuesday")
    known = Results([first], [_compared("a", first, 1)])

    results = report.renewed(known, second, [_compared("a", second, 2)], ["a"])

    assert [run.date for run in results.runs] == ["tuesday"]


def test_the_page_says_by_which_run_each_comparison_was_made(tmp_path: Path) -> None:
    first, second = _run("monday"), _run("tuesday")
    page = tmp_path / "page.md"
    report.save(report.renewed(Results([], []), first, [_compared("a", first, 1)], ["a", "b"]), page)
    report.save(report.renewed(report.load(page), second, [_compared("b", second, 2)], ["a", "b"]), page)

    of_a, of_b = page.read_text().split("## a\n")[1].split("## b\n")

    assert first.command in of_a
    assert second.command in of_b
    assert {chart.name for chart in (tmp_path / "page").iterdir()} == {"a-1.svg", "b-1.svg"}


def test_the_quick_forms_that_need_no_other_contestant_run() -> None:
    names = ["create", "scripts", "flight-memory", "queues"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *names, "--quick"],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    for name in names:
        assert f"\n{name} (" in done.stdout, f"{name} told nothing:\n{done.stdout}"
