"""Numbers as people read them."""

import math


def number(value: float) -> str:
    """Three digits that count, or all before the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
