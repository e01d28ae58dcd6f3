"""Spans of time as people write them: 24h, 90m, 30s, 7d."""

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Raises ValueError for what is none, or is not above zero."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError("give a number and a unit, such as 24h, 90m or 7d")
    return float(match[1]) * _SECONDS[match[2]]
