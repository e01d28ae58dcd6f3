"""Tables that fit the terminal: some columns are cut or left out, never wrapped, and numbers never are."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Column, Table

from batchline.cli.display.console import printable

_GAP = 2
# A column that is cut keeps at least so many cells.
_MIN_WIDTH = 6


def print_table(
    console: Console,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    cut: Sequence[str],
    right: Sequence[str] = (),
) -> None:
    """Columns named in `cut` are shortened to make the table as wide as the console, and left out if that is
    not enough, the last first; those in `right` are numbers."""
    texts = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(names, *texts, strict=True)]
    if not _shrink(widths, [names.index(name) for name in cut], console.width) and cut:
        kept = [nth for nth, name in enumerate(names) if name != cut[-1]]
        fewer = [[row[nth] for nth in kept] for row in rows]
        print_table(console, [names[nth] for nth in kept], fewer, cut=cut[:-1], right=right)
        return
    table = Table(
        *(Column(name, no_wrap=True, justify="right" if name in right else "left") for name in names),
        box=None,
        padding=(0, _GAP, 0, 0),
        pad_edge=False,
    )
    for row in texts:
        table.add_row(*(_shortened(cell, width) for cell, width in zip(row, widths, strict=True)))
    console.print(table, markup=False, crop=False, no_wrap=True)


def _shrink(widths: list[int], flexible: Sequence[int], available: int) -> bool:
    """Take cells from the widest of the flexible columns, until all fit or none can give more."""
    excess = sum(widths) + _GAP * (len(widths) - 1) - available
    while excess > 0:
        widest = max(flexible, key=lambda column: widths[column], default=None)
        if widest is None or widths[widest] <= _MIN_WIDTH:
            return False
        widths[widest] -= 1
        excess -= 1
    return True


def _shortened(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"
