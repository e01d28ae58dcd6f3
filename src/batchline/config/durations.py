"""Durations as people write them: 24h, 90m, 30s, 7d."""

import re

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """Parse a duration. Raises ValueError unless it is a number above zero and a unit."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError("give a number and a unit, such as 24h, 90m or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def text(seconds: float | None) -> str:
    """A duration in the largest unit that divides it, in quotes as TOML needs them."""
    if seconds is None:
        return "none"
    unit = next((unit for unit in "dhm" if seconds % _SECONDS[unit] == 0), "s")
    return f'"{seconds / _SECONDS[unit]:g}{unit}"'
