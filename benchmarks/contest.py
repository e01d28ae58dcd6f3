"""A contest: contestants take turns, round after round, and their medians are compared."""

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec


class Series(msgspec.Struct, frozen=True):
    """What one contestant did, a value for each round."""

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
    """What a figure is held to."""

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


class Figure(msgspec.Struct, frozen=True):
    """One number, what it was taken from, and the bar it is held to, if to any."""

    name: str
    value: float
    unit: str
    bar: Bar | None
    series: list[Series]
    # What the number alone does not say.
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.bar.is_met_by(self.value)


@dataclass(frozen=True, slots=True)
class Contestant:
    """Takes a turn and says how it did, in `unit`."""

    name: str
    unit: str
    measure: Callable[[], Awaitable[float]]


async def alternate(rounds: int, *contestants: Contestant) -> list[Series]:
    """Every other round goes in reverse order, so that nobody always comes after the same one."""
    values: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for nth in range(rounds):
        for contestant in contestants if nth % 2 == 0 else reversed(contestants):
            values[contestant.name].append(await contestant.measure())
    return [Series(contestant.name, contestant.unit, values[contestant.name]) for contestant in contestants]


def ratio(name: str, over: Series, under: Series, bar: Bar | None = None) -> Figure:
    """The one median in terms of the other."""
    return Figure(name, over.median / under.median, "×", bar, [over, under])


def at_least(limit: float) -> Bar:
    return Bar("at least", limit)


def at_most(limit: float) -> Bar:
    return Bar("at most", limit)


def below(limit: float) -> Bar:
    return Bar("under", limit)
