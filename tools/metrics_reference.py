"""Write the tables of the metrics reference from the metrics' definitions.

    python -m tools.metrics_reference

It replaces what is between `<!-- metrics: SOURCE -->` and `<!-- end -->` in docs/reference/metrics.md. The
rest of the page is written by hand.
"""

import re
from pathlib import Path

from batchline.metrics.definitions import ALL, MetricSource

PAGE = Path(__file__).parents[1] / "docs/reference/metrics.md"
_REGION = re.compile(r"(<!-- metrics: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """The page with its tables as the definitions have them."""

    def table(region: re.Match[str]) -> str:
        return "\n".join((region[1], *_table(MetricSource(region[2])), "", region[3]))

    return _REGION.sub(table, page)


def _table(source: MetricSource) -> list[str]:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
        for each in ALL
        if each.source is source
    ]
    return ["| metric | type | labels | |", "|---|---|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
