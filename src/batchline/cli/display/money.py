"""Amounts of money for people."""

from batchline.model.spending import dollars


def money(nano: int) -> str:
    """Dollars with as many digits as are of interest."""
    amount = dollars(nano)
    if amount == 0 or amount >= 1:
        return f"${amount:,.2f}"
    if amount < 0.01:
        return f"${amount:.2g}"
    cents, rest = f"{amount:.4f}"[:-2], f"{amount:.4f}"[-2:]
    return f"${cents}{rest.rstrip('0')}"
