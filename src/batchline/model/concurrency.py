"""Concurrency that is found by measuring, as against a number that somebody has set."""

from typing import Self

# Requests in flight at one upstream and model, from one worker, unless the operator allows more or fewer.
DEFAULT_CEILING = 1000
MAX_CEILING = 20_000
_TYPICAL = 128


class AutoConcurrency(int):
    """As many requests in flight as the upstream gains from. As a number it is the ceiling: no more than
    that. So it can stand wherever a number of requests is meant."""

    def __new__(cls, ceiling: int = DEFAULT_CEILING) -> Self:
        return super().__new__(cls, ceiling)

    def __str__(self) -> str:
        return "auto" if int(self) == DEFAULT_CEILING else f"auto:{int(self)}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec) if not spec else format(int(self), spec)

    def __repr__(self) -> str:
        return f"AutoConcurrency({int(self)})"


AUTO = AutoConcurrency()


def parsed_concurrency(value: object) -> int | None:
    """A number, "auto", or "auto:N" with a ceiling; None if it is neither."""
    match value:
        case AutoConcurrency():
            return value
        case bool():
            return None
        case int():
            return value if 1 <= value <= MAX_CEILING else None
        case "auto":
            return AUTO
        case str() if value.startswith("auto:") and value[5:].isascii() and value[5:].isdigit():
            ceiling = int(value[5:])
            return AutoConcurrency(ceiling) if 1 <= ceiling <= MAX_CEILING else None
        case str() if value.isascii() and value.isdigit():
            return parsed_concurrency(int(value))
        case _:
            return None


def typical_concurrency(concurrency: int) -> int:
    """How many requests to prepare memory for. Few upstreams gain from as many as the ceiling allows."""
    return min(concurrency, _TYPICAL) if isinstance(concurrency, AutoConcurrency) else concurrency


def concurrency_text(concurrency: int) -> int | str:
    """As somebody would write it."""
    return str(concurrency) if isinstance(concurrency, AutoConcurrency) else concurrency
