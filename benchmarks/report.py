"""The figures of one run: kept as JSON, shown on the terminal, written as Markdown with a chart each.

    python -m benchmarks.report docs/benchmarks.json

writes the page and its charts again from the figures of the last run.
"""

import sys
from pathlib import Path

import msgspec

from benchmarks.chart import bar_chart
from benchmarks.contest import Bar, Figure, Series
from benchmarks.numbers import number


class Compared(msgspec.Struct, frozen=True):
    """One comparison's figures. `how` is its module's docstring."""

    name: str
    how: str
    seconds: float
    figures: list[Figure]


class Results(msgspec.Struct, frozen=True):
    """A run of the benchmarks, with all that is needed to judge it and to repeat it."""

    date: str
    command: str
    quick: bool
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    comparisons: list[Compared]


def save(results: Results, page: Path) -> None:
    """The page, and its data beside it under the same name."""
    data = page.with_suffix(".json")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    render(data)


def render(data: Path) -> None:
    """The page and its folder of charts."""
    results = msgspec.json.decode(data.read_bytes(), type=Results)
    charts = data.with_suffix("")
    charts.mkdir(exist_ok=True)
    for compared in results.comparisons:
        for figure, name in zip(compared.figures, _chart_names(compared), strict=True):
            (charts / name).write_text(bar_chart(figure))
    data.with_suffix(".md").write_text(_page(results, charts.name))


def told(compared: Compared) -> str:
    """For the terminal."""
    lines = [f"{compared.name} ({compared.seconds:.0f} s)"]
    for figure in compared.figures:
        lines.append(f"  {figure.name}: {_value(figure)}{_held_to(figure)}")
        lines += [
            f"    {series.name}: {number(series.median)} {series.unit}, {_spread(series)}"
            for series in figure.series
        ]
    return "\n".join(lines)


def _page(results: Results, charts: str) -> str:
    sections = [_head(results), _summary(results)]
    sections += [_section(compared, charts) for compared in results.comparisons]
    return "\n\n".join(sections) + "\n"


def _head(results: Results) -> str:
    facts = {
        "date": results.date,
        "command": f"`{results.command}`",
        **results.machine,
        "versions": ", ".join(f"{name} {number}" for name, number in results.versions.items()),
        "PostgreSQL": ", ".join(f"{name} {value}" for name, value in results.settings.items()),
    }
    warning = "\n\n**A quick run: everything is too small to mean anything.**" if results.quick else ""
    return f"""# Benchmarks

Figures are ratios: contestants take turns on one machine and one PostgreSQL with durable settings, and their
medians are compared. This page was written by the command below.{warning}

{_table(["", ""], [[name, value] for name, value in facts.items()])}"""


def _summary(results: Results) -> str:
    rows = [
        [f"[{compared.name}](#{compared.name})", figure.name, _value(figure), _bar(figure.bar), _met(figure)]
        for compared in results.comparisons
        for figure in compared.figures
    ]
    return _table(["comparison", "figure", "measured", "bar", "met"], rows)


def _section(compared: Compared, charts: str) -> str:
    parts = [f"## {compared.name}", compared.how.strip()]
    for figure, chart in zip(compared.figures, _chart_names(compared), strict=True):
        rows = [
            [series.name, f"{number(series.median)} {series.unit}", _spread(series), str(len(series.values))]
            for series in figure.series
        ]
        parts.append(f"**{figure.name}: {_value(figure)}**{_held_to(figure)}")
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
    return f"{number(series.least)} to {number(series.most)}"


if __name__ == "__main__":
    render(Path(sys.argv[1]))
