"""The report of the benchmarks keeps what a run did not renew, and says which run each figure comes from."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import report
from benchmarks.comparisons import COMPARISONS
from benchmarks.comparisons.scripts import ScriptSender, ScriptSetting
from benchmarks.contest import Figure, Series, Trace
from benchmarks.report import BenchResults, Compared, Run
from benchmarks.sleepers import SLEEPERS
from tests.support.repository import ROOT


def _run(date: str) -> Run:
    return Run(date, f"python -m benchmarks # {date}", False, {}, {}, {})


def _compared(name: str, run: Run, value: float) -> Compared:
    figure = Figure("a figure", value, "×", None, [Series("Batchline", "items/s", [value])])
    return Compared(name, "How.", 1.0, run.date, [figure])


def test_a_run_of_some_comparisons_renews_these_alone() -> None:
    first, second = _run("monday"), _run("tuesday")
    known = BenchResults(
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
    known = BenchResults([first], [_compared("a", first, 1)])

    results = report.renewed(known, second, [_compared("a", second, 2)], ["a"])

    assert [run.date for run in results.runs] == ["tuesday"]


def test_the_page_says_by_which_run_each_comparison_was_made(tmp_path: Path) -> None:
    first, second = _run("monday"), _run("tuesday")
    page = tmp_path / "page.md"
    report.save(report.renewed(BenchResults([], []), first, [_compared("a", first, 1)], ["a", "b"]), page)
    report.save(report.renewed(report.load(page), second, [_compared("b", second, 2)], ["a", "b"]), page)

    of_a, of_b = page.read_text().split("## a\n")[1].split("## b\n")

    assert first.command in of_a
    assert second.command in of_b
    assert {chart.name for chart in (tmp_path / "page").iterdir()} == {"a.svg", "b.svg"}


def test_values_over_time_have_a_chart_of_their_own(tmp_path: Path) -> None:
    run = _run("monday")
    trace = Trace("at the upstream", "requests", [0.0, 1.0, 2.0], [4.0, 8.0, 6.0])
    plain = _compared("a", run, 1)
    traced = msgspec.structs.replace(plain.figures[0], traces=[trace])
    page = tmp_path / "page.md"

    report.save(BenchResults([run], [msgspec.structs.replace(plain, figures=[traced])]), page)

    assert "](page/a-1.svg)" in page.read_text()
    drawn = (tmp_path / "page" / "a-1.svg").read_text()
    assert "at the upstream, requests" in drawn
    assert drawn.count(",") >= 3
    assert {chart.name for chart in (tmp_path / "page").iterdir()} == {"a.svg", "a-1.svg"}


def test_the_page_says_how_long_each_comparison_took_and_what_ran_beside_others(tmp_path: Path) -> None:
    run = _run("monday")
    alone = _compared("a", run, 1)
    beside = msgspec.structs.replace(_compared("b", run, 2), seconds=60.0, side_by_side=True)
    page = tmp_path / "page.md"

    report.save(BenchResults([msgspec.structs.replace(run, seconds=120.0)], [alone, beside]), page)

    assert "| [b](#b) | 60, side by side with others |\n| [a](#a) | 1 |" in page.read_text()
    assert "| `python -m benchmarks # monday` | 2 min |" in page.read_text()


def test_the_page_starts_with_one_table_of_results_and_one_of_the_machine(tmp_path: Path) -> None:
    first, second = (
        Run(
            date,
            "batchline-bench",
            False,
            {"CPU": "fast", "load before the run": load},
            {"Python": "3.11"},
            {},
        )
        for date, load in (("2026-01-01 10:00:00 UTC", "0.1"), ("2026-01-02 10:00:00 UTC", "0.2"))
    )
    results = BenchResults([first, second], [_compared("a", first, 1), _compared("b", second, 2)])
    page = tmp_path / "page.md"

    report.save(results, page)

    head, machine = page.read_text().split("\n## a\n")[0].split("\n## Machine\n")
    assert "| [a](#a) | Batchline | a figure: **1.00 ×** |  | 2026-01-01 |" in head
    assert "| [b](#b) | Batchline | a figure: **2.00 ×** |  | 2026-01-02 |" in head
    assert machine.count("| CPU | fast |") == 1
    assert "0.1" not in machine, "the load is the run's, not the machine's"


def test_a_comparison_of_several_figures_has_one_chart(tmp_path: Path) -> None:
    run = _run("monday")
    one = _compared("a", run, 1)
    several = msgspec.structs.replace(one, figures=[Figure("count", 3, "", None, []), *one.figures * 3])
    page = tmp_path / "page.md"

    report.save(BenchResults([run], [several]), page)

    assert [chart.name for chart in (tmp_path / "page").iterdir()] == ["a.svg"]
    assert page.read_text().count("a.svg") == 1


def test_what_is_kept_of_a_run_can_be_read_that_did_not_say_how_long_it_took() -> None:
    old = b'{"date":"d","command":"c","quick":false,"machine":{},"versions":{},"settings":{}}'

    assert msgspec.json.decode(old, type=Run).seconds == 0


def test_those_that_run_side_by_side_are_comparisons() -> None:
    assert set(COMPARISONS) > SLEEPERS


@pytest.mark.parametrize(
    ("latency", "concurrency", "lines"),
    [
        pytest.param(0, 64, 8_000, id="as many as it sends in the time"),
        pytest.param(50, 64, 2_560, id="as many as the latency allows"),
        pytest.param(1_000, 2_000, 4_000, id="two waves of a second"),
        pytest.param(0, 10_000, 10_000, id="one for each place at least"),
    ],
)
def test_a_sender_gets_lines_for_some_two_seconds(latency: int, concurrency: int, lines: int) -> None:
    sender = ScriptSender("a script", 4_000, lambda path, upstream, in_flight: 0.0)

    assert ScriptSetting(latency, concurrency).lines(sender) == lines


@pytest.mark.timeout(900)
def test_the_quick_forms_that_need_no_other_contestant_run() -> None:
    names = ["create", "scripts", "flight-memory", "queues"]

    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *names, "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    for name in names:
        assert f"\n{name} (" in done.stdout, f"{name} told nothing:\n{done.stdout}"
