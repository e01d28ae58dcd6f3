"""Contests: contestants take turns, round after round, and their medians are compared."""

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec


class Series(msgspec.Struct, frozen=True):
    """The results of one contestant, one value per round."""

    name: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def minimum(self) -> float:
        return min(self.values)

    @property
    def maximum(self) -> float:
        return max(self.values)

    def percentile(self, nth: int) -> float:
        return statistics.quantiles(self.values, n=100, method="inclusive")[nth - 1]


class Bar(msgspec.Struct, frozen=True):
    """The target of a figure."""

    side: Literal["at least", "at most", "under"]
    limit: float

    def is_met_by(self, value: float) -> bool:
        match self.side:
            case "at least":
                return value >= self.limit
            case "at most":
                return value <= self.limit
            case "under":
                return value < self.limit


class Trace(msgspec.Struct, frozen=True):
    """A value over the seconds of a run."""

    name: str
    unit: str
    seconds: list[float]
    values: list[float]


class Figure(msgspec.Struct, frozen=True):
    """One number, the series behind it, and its bar, if any."""

    name: str
    value: float
    unit: str
    bar: Bar | None
    series: list[Series]
    # Additional explanation.
    note: str = ""
    # For a chart over time.
    traces: list[Trace] = []

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.bar.is_met_by(self.value)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A contestant: takes a turn and returns its result in `unit`."""

    name: str
    unit: str
    measure: Callable[[], Awaitable[float]]


async def alternate(rounds: int, *contestants: Contestant) -> list[Series]:
    """Run rounds in alternating order, so that no contestant always follows the same one."""
    values: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for nth in range(rounds):
        for contestant in contestants if nth % 2 == 0 else reversed(contestants):
            values[contestant.name].append(await contestant.measure())
    return [Series(contestant.name, contestant.unit, values[contestant.name]) for contestant in contestants]


def ratio(name: str, over: Series, under: Series, bar: Bar | None = None) -> Figure:
    """The ratio of two medians."""
    return Figure(name, over.median / under.median, "×", bar, [over, under])


def at_least(limit: float) -> Bar:
    return Bar("at least", limit)


def at_most(limit: float) -> Bar:
    return Bar("at most", limit)


def below(limit: float) -> Bar:
    return Bar("under", limit)
