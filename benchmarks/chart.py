"""Bar chart as SVG: one bar per contestant for its median, with a line for its spread."""

from html import escape

from benchmarks.contest import Figure, Series
from benchmarks.numbers import number

_WIDTH, _LEFT, _RIGHT = 720, 230, 130
_TOP, _ROW, _BAR = 34, 34, 18
_COLORS = ("#2b6cb0", "#a0aec0")


def bar_chart(figure: Figure) -> str:
    maximum = max((series.maximum for series in figure.series), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / maximum
    rows = [_row(series, nth, scale) for nth, series in enumerate(figure.series)]
    height = _TOP + _ROW * len(rows) + 6
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
