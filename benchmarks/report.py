"""The newest figures: kept as JSON, shown on the terminal, written as Markdown with a chart each.

    python -m benchmarks.report docs/benchmarks.json

writes the page and its charts again from the figures of the last run.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.chart import bar_chart
from benchmarks.contest import Bar, Figure, Series
from benchmarks.numbers import number


class Run(msgspec.Struct, frozen=True):
    """A run of the benchmarks: all that is needed to judge its figures and to repeat it."""

    date: str
    command: str
    quick: bool
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    # Of all its comparisons; 0 where nobody kept it.
    seconds: float = 0.0


class Compared(msgspec.Struct, frozen=True):
    """One comparison's figures. `how` is its module's docstring, `run` the date of the run it was made in."""

    name: str
    how: str
    seconds: float
    run: str
    figures: list[Figure]
    # Run while others that mostly wait, as it does, ran too.
    side_by_side: bool = False


class Results(msgspec.Struct, frozen=True):
    """The newest figures of each comparison, and the runs that they come from."""

    runs: list[Run]
    comparisons: list[Compared]

    def run_of(self, compared: Compared) -> Run:
        return next(run for run in self.runs if run.date == compared.run)


def renewed(results: Results, run: Run, compared: Sequence[Compared], order: Sequence[str]) -> Results:
    """With these comparisons in place of older ones of the same names, in the given order of names. What is
    not among those names any more is left out, and so is a run that nothing is left of."""
    newest = {old.name: old for old in results.comparisons} | {new.name: new for new in compared}
    comparisons = [newest[name] for name in order if name in newest]
    runs = {old.date: old for old in results.runs} | {run.date: run}
    wanted = {kept.run for kept in comparisons}
    return Results([runs[date] for date in sorted(runs, reverse=True) if date in wanted], comparisons)


def load(page: Path) -> Results:
    """What is behind the page; nothing where there is none yet."""
    data = page.with_suffix(".json")
    if not data.exists():
        return Results([], [])
    return msgspec.json.decode(data.read_bytes(), type=Results)


def save(results: Results, page: Path) -> None:
    """The page, and its data beside it under the same name."""
    data = page.with_suffix(".json")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    render(data)


def render(data: Path) -> None:
    """The page and its folder of charts, in which nothing else is left."""
    results = msgspec.json.decode(data.read_bytes(), type=Results)
    charts = data.with_suffix("")
    charts.mkdir(exist_ok=True)
    for old in charts.glob("*.svg"):
        old.unlink()
    for compared in results.comparisons:
        for figure, name in zip(compared.figures, _chart_names(compared), strict=True):
            if figure.series:
                (charts / name).write_text(bar_chart(figure))
    data.with_suffix(".md").write_text(_page(results, charts.name))


def reported(compared: Compared) -> str:
    """For the terminal."""
    lines = [f"{compared.name} ({compared.seconds:.0f} s)"]
    for figure in compared.figures:
        lines.append(f"  {figure.name}: {_value(figure)}{_held_to(figure)}")
        lines += [f"    {line}" for line in figure.note.splitlines()]
        lines += [
            f"    {series.name}: {number(series.median)} {series.unit}, {_spread(series)}"
            for series in figure.series
        ]
    return "\n".join(lines)


def _page(results: Results, charts: str) -> str:
    sections = [_head(results), _summary(results), _times(results)]
    sections += [_section(compared, results.run_of(compared), charts) for compared in results.comparisons]
    return "\n\n".join(sections) + "\n"


def _head(results: Results) -> str:
    runs = "\n\n".join(_facts(run) for run in results.runs)
    return f"""# Benchmarks

Figures are ratios: contestants take turns on one machine and one PostgreSQL with durable settings, and their
medians are compared. After `make setup`, `.venv/bin/batchline-bench NAME…` measures some of them again.
`make bench` measures all of them and writes this page; [how long each takes](#how-long-each-takes) is below.
The commands that follow wrote the page; each comparison names its command.

{runs}"""


def _facts(run: Run) -> str:
    facts = {
        "date": run.date,
        "command": f"`{run.command}`",
        **({"took": f"{run.seconds / 60:.0f} min"} if run.seconds else {}),
        **run.machine,
        "versions": ", ".join(f"{name} {number}" for name, number in run.versions.items()),
        "PostgreSQL": ", ".join(f"{name} {value}" for name, value in run.settings.items()),
    }
    warning = "**A quick run: too small for meaningful figures.**\n\n" if run.quick else ""
    return warning + _table(["", ""], [[name, value] for name, value in facts.items()])


def _summary(results: Results) -> str:
    rows = [
        [f"[{compared.name}](#{compared.name})", figure.name, _value(figure), _bar(figure.bar), _met(figure)]
        for compared in results.comparisons
        for figure in compared.figures
    ]
    return _table(["comparison", "figure", "measured", "bar", "met"], rows)


def _times(results: Results) -> str:
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
    for figure, chart in zip(compared.figures, _chart_names(compared), strict=True):
        rows = [
            [series.name, f"{number(series.median)} {series.unit}", _spread(series), str(len(series.values))]
            for series in figure.series
        ]
        parts.append(f"**{figure.name}: {_value(figure)}**{_held_to(figure)}")
        if figure.note:
            parts.append(figure.note)
        if rows:
            parts.append(_table(["contestant", "median", "spread", "rounds"], rows))
            parts.append(f"![{figure.name}]({charts}/{chart})")
    return "\n\n".join(parts)


def _chart_names(compared: Compared) -> list[str]:
    return [f"{compared.name}-{nth}.svg" for nth in range(1, len(compared.figures) + 1)]


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
