"""Format numbers for people."""

import math


def number(value: float) -> str:
    """Format with three significant digits, or all digits before the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"
