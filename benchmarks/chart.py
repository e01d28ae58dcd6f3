"""Charts as SVG. Bars: one per contestant for its median, with a line for its spread. Traces: values over the
seconds of a run, one below the other."""

from html import escape

from benchmarks.contest import Figure, Series, Trace
from benchmarks.numbers import number

_WIDTH, _LEFT, _RIGHT = 720, 230, 130
_TOP, _ROW, _BAR = 34, 34, 18
_COLORS = ("#2b6cb0", "#a0aec0")
_TRACE, _TRACE_LEFT = 130, 60


def bar_chart(figure: Figure) -> str:
    maximum = max((series.maximum for series in figure.series), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / maximum
    rows = [_row(series, nth, scale) for nth, series in enumerate(figure.series)]
    return _drawing(figure, _TOP + _ROW * len(rows) + 6, rows)


def trace_chart(figure: Figure) -> str:
    rows = [_trace(trace, _TOP + nth * _TRACE) for nth, trace in enumerate(figure.traces)]
    return _drawing(figure, _TOP + _TRACE * len(rows) + 10, rows)


def _drawing(figure: Figure, height: int, rows: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
            f' height="{height}" font-family="system-ui, sans-serif" font-size="13">',
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="8" y="20" font-weight="600" fill="#1a202c">{escape(figure.name)}</text>',
            *rows,
            "</svg>\n",
        ]
    )


def _trace(trace: Trace, top: int) -> str:
    bottom, right, left = top + _TRACE - 22, _WIDTH - 16, _TRACE_LEFT
    end, maximum = max(trace.seconds, default=0.0) or 1.0, max(trace.values, default=0.0) or 1.0
    points = " ".join(
        f"{left + at / end * (right - left):.1f},{bottom - value / maximum * (bottom - top - 18):.1f}"
        for at, value in zip(trace.seconds, trace.values, strict=True)
    )
    title = escape(f"{trace.name}, {trace.unit}")
    return "\n".join(
        [
            f'<text x="{left}" y="{top + 10}" fill="#1a202c">{title}</text>',
            f'<text x="{left - 6}" y="{top + 24}" text-anchor="end" fill="#4a5568">{number(maximum)}</text>',
            f'<text x="{left - 6}" y="{bottom}" text-anchor="end" fill="#4a5568">0</text>',
            f'<text x="{right}" y="{bottom + 14}" text-anchor="end" fill="#4a5568">{number(end)} s</text>',
            f'<line x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#a0aec0"/>',
            f'<polyline points="{points}" fill="none" stroke="{_COLORS[0]}" stroke-width="1.5"/>',
        ]
    )


def _row(series: Series, nth: int, scale: float) -> str:
    top = _TOP + nth * _ROW
    middle = top + _BAR / 2
    end = _LEFT + series.maximum * scale
    return "\n".join(
        [
            f'<text x="{_LEFT - 8}" y="{top + 14}" text-anchor="end" fill="#1a202c">{_label(series)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{max(series.median * scale, 1):.1f}" height="{_BAR}"'
            f' fill="{_COLORS[min(nth, 1)]}"/>',
            f'<line x1="{_LEFT + series.minimum * scale:.1f}" x2="{end:.1f}" y1="{middle}" y2="{middle}"'
            ' stroke="#1a202c"/>',
            f'<text x="{end + 8:.1f}" y="{top + 14}" fill="#1a202c">{_value(series)}</text>',
        ]
    )


def _value(series: Series) -> str:
    return escape(f"{number(series.median)} {series.unit}")


def _label(series: Series) -> str:
    return escape(series.name.replace("`", ""))
