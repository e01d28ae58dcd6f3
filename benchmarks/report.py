"""The newest figures as JSON, on the terminal, and as Markdown with one chart per comparison.

    python -m benchmarks.report docs/benchmarks.json

writes the page and its charts again from the stored figures.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.chart import bar_chart, trace_chart
from benchmarks.contest import Bar, Figure, Series
from benchmarks.numbers import number

# Facts of machine.describe that change from run to run.
_OF_THE_MOMENT = ("load before the run", "one fsync of 8 KiB")


class Run(msgspec.Struct, frozen=True):
    """A run of the benchmarks, with everything needed to judge its figures and to repeat it."""

    date: str
    command: str
    quick: bool
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    # Of all its comparisons; 0 if it was not recorded.
    seconds: float = 0.0


class Compared(msgspec.Struct, frozen=True):
    """One comparison's figures. `how` is its module's docstring, `run` the date of its run."""

    name: str
    how: str
    seconds: float
    run: str
    figures: list[Figure]
    # It ran together with other comparisons that mostly wait.
    side_by_side: bool = False


class BenchResults(msgspec.Struct, frozen=True):
    """The newest figures of each comparison, and the runs that they come from."""

    runs: list[Run]
    comparisons: list[Compared]

    def run_of(self, compared: Compared) -> Run:
        return next(run for run in self.runs if run.date == compared.run)


def renewed(
    results: BenchResults, run: Run, compared: Sequence[Compared], order: Sequence[str]
) -> BenchResults:
    """Replace older comparisons of the same names, and sort by `order`.

    Comparisons that are not in `order`, and runs without comparisons, are dropped.
    """
    newest = {old.name: old for old in results.comparisons} | {new.name: new for new in compared}
    comparisons = [newest[name] for name in order if name in newest]
    runs = {old.date: old for old in results.runs} | {run.date: run}
    wanted = {kept.run for kept in comparisons}
    return BenchResults([runs[date] for date in sorted(runs, reverse=True) if date in wanted], comparisons)


def load(page: Path) -> BenchResults:
    """Load the results behind the page; empty if there are none yet."""
    data = page.with_suffix(".json")
    if not data.exists():
        return BenchResults([], [])
    return msgspec.json.decode(data.read_bytes(), type=BenchResults)


def save(results: BenchResults, page: Path) -> None:
    """Write the page, and its data in a JSON file of the same name."""
    data = page.with_suffix(".json")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    render(data)


def render(data: Path) -> None:
    """Write the page and its charts. Other charts in the folder are deleted."""
    results = msgspec.json.decode(data.read_bytes(), type=BenchResults)
    charts = data.with_suffix("")
    charts.mkdir(exist_ok=True)
    for old in charts.glob("*.svg"):
        old.unlink()
    for compared in results.comparisons:
        if (figure := _charted(compared)) is not None:
            (charts / _chart_name(compared)).write_text(bar_chart(figure))
        for nth, figure in enumerate(compared.figures):
            if figure.traces:
                (charts / _trace_name(compared, nth)).write_text(trace_chart(figure))
    data.with_suffix(".md").write_text(_page(results, charts.name))


def reported(compared: Compared) -> str:
    """Format a comparison for the terminal."""
    lines = [f"{compared.name} ({compared.seconds:.0f} s)"]
    for figure in compared.figures:
        lines.append(f"  {figure.name}: {_value(figure)}{_held_to(figure)}")
        lines += [f"    {line}" for line in figure.note.splitlines()]
        lines += [
            f"    {series.name}: {number(series.median)} {series.unit}, {_spread(series)}"
            for series in figure.series
        ]
    return "\n".join(lines)


def _page(results: BenchResults, charts: str) -> str:
    sections = [_head(results), _summary(results), _machine(results)]
    sections += [_section(compared, results.run_of(compared), charts) for compared in results.comparisons]
    sections += [_runs(results), _times(results)]
    return "\n\n".join(sections) + "\n"


def _head(results: BenchResults) -> str:
    quick = any(run.quick for run in results.runs)
    warning = "\n\n**A quick run: too small for meaningful figures.**" if quick else ""
    return f"""# Benchmarks

Figures are ratios where the unit is ×: contestants take turns on one machine and one PostgreSQL with durable
settings, and their medians are compared. `make bench` measures all of them and writes this page;
`make bench NAMES="steady wake"` measures some of them again. The [runs](#runs) behind the figures, and
[how long each takes](#how-long-each-takes), are at the end.{warning}"""


def _summary(results: BenchResults) -> str:
    rows = [
        [
            f"[{compared.name}](#{compared.name})",
            _contestant(figure),
            f"{figure.name}: **{_value(figure)}**",
            ", ".join(filter(None, [_bar(figure.bar), _met(figure)])),
            compared.run.partition(" ")[0],
        ]
        for compared in results.comparisons
        for figure in compared.figures
        if figure.series or figure.bar is not None
    ]
    return "## Results\n\n" + _table(["comparison", "contestant", "figure", "bar", "date"], rows)


def _contestant(figure: Figure) -> str:
    """The contestant of a figure: Batchline if it takes part, otherwise the first series."""
    names = [series.name for series in figure.series]
    return next((name for name in names if name.startswith("Batchline")), (names or ["Batchline"])[0])


def _machine(results: BenchResults) -> str:
    """Table of the machine: one value if all runs agree, otherwise all values."""
    facts: dict[str, list[str]] = {}
    for run in results.runs:
        described = {
            **{name: value for name, value in run.machine.items() if name not in _OF_THE_MOMENT},
            "versions": ", ".join(f"{name} {number}" for name, number in run.versions.items()),
            "PostgreSQL": ", ".join(f"{name} {value}" for name, value in run.settings.items()),
        }
        for name, value in described.items():
            known = facts.setdefault(name, [])
            if value not in known:
                known.append(value)
    return "## Machine\n\n" + _table(["", ""], [[name, "; ".join(values)] for name, values in facts.items()])


def _runs(results: BenchResults) -> str:
    rows = [
        [
            run.date,
            f"`{run.command}`",
            f"{run.seconds / 60:.0f} min" if run.seconds else "",
            *(run.machine.get(name, "") for name in _OF_THE_MOMENT),
        ]
        for run in results.runs
    ]
    return "## Runs\n\n" + _table(["date", "command", "took", *_OF_THE_MOMENT], rows)


def _times(results: BenchResults) -> str:
    longest = sorted(results.comparisons, key=lambda compared: compared.seconds, reverse=True)
    rows = [
        [
            f"[{compared.name}](#{compared.name})",
            f"{compared.seconds:,.0f}" + (", side by side with others" if compared.side_by_side else ""),
        ]
        for compared in longest
    ]
    return "## How long each takes\n\n" + _table(["comparison", "seconds"], rows)


def _section(compared: Compared, run: Run, charts: str) -> str:
    made = f"*{run.date}, {compared.seconds:.0f} s of `{run.command}`*"
    parts = [f"## {compared.name}", compared.how.strip(), made]
    charted = _charted(compared)
    if charted is not None:
        parts.append(f"![{charted.name}]({charts}/{_chart_name(compared)})")
    for nth, figure in enumerate(compared.figures):
        rows = [
            [series.name, f"{number(series.median)} {series.unit}", _spread(series), str(len(series.values))]
            for series in figure.series
        ]
        parts.append(f"**{figure.name}: {_value(figure)}**{_held_to(figure)}")
        if figure.note:
            parts.append(figure.note)
        if rows:
            parts.append(_table(["contestant", "median", "spread", "rounds"], rows))
        if figure.traces:
            parts.append(f"![{figure.name}, over time]({charts}/{_trace_name(compared, nth)})")
    return "\n\n".join(parts)


def _charted(compared: Compared) -> Figure | None:
    """The figure to draw: the first one with a series."""
    return next((figure for figure in compared.figures if figure.series), None)


def _trace_name(compared: Compared, nth: int) -> str:
    return f"{compared.name}-{nth + 1}.svg"


def _chart_name(compared: Compared) -> str:
    return f"{compared.name}.svg"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _value(figure: Figure) -> str:
    return f"{number(figure.value)} {figure.unit}".strip()


def _held_to(figure: Figure) -> str:
    return "" if figure.bar is None else f", bar {_bar(figure.bar)}, {_met(figure)}"


def _bar(bar: Bar | None) -> str:
    return "" if bar is None else f"{bar.side} {bar.limit:,g}"


def _met(figure: Figure) -> str:
    match figure.met:
        case None:
            return ""
        case True:
            return "met"
        case False:
            return "**missed**"


def _spread(series: Series) -> str:
    return f"{number(series.minimum)} to {number(series.maximum)}"


if __name__ == "__main__":
    render(Path(sys.argv[1]))
