"""Forecasts of what a batch will use and cost: rough ones without sending, and ones from a random sample."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from batchline.model import Spending, Usage
from batchline.model.spending import dollars, largest_usage
from batchline.store.forecasts import LearnedUsage, ProfileLine, SampledLine

# How far a rough forecast may be off: the input, with bytes per token that were learned or assumed, and the
# output, if it was learned.
_LEARNED, _ASSUMED, _OUTPUT = 0.2, 0.5, 0.5
# About 95 of 100 samples are within so many standard errors.
_ERRORS = 2.0


class Range(msgspec.Struct, frozen=True):
    low: float
    likely: float
    high: float

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.likely + other.likely, self.high + other.high)


_NONE = Range(0.0, 0.0, 0.0)


class Forecast(msgspec.Struct, frozen=True):
    """`cost` is in nano-dollars, None without prices; `seconds` is None if nothing was sent."""

    lines: int
    input_tokens: Range
    output_tokens: Range
    cost: Range | None
    seconds: Range | None = None
    # Finished lines, or earlier requests, that it was learned from; 0: it is assumed.
    learned_from: int = 0
    rough: bool = True


def rough_forecast(
    lines: Sequence[ProfileLine], learned: Mapping[str, LearnedUsage], spending: Spending
) -> Forecast:
    """From the sizes of requests and the limits of their output, without sending any."""
    input_tokens, output_tokens, cost = _NONE, _NONE, _NONE
    for line in lines:
        known = learned.get(line.model)
        largest = largest_usage(spending, line.url, line.body)
        tokens = _input(line, known, spending)
        given = _output(known, largest.output_tokens)
        input_tokens += _scaled(tokens, line.weight)
        output_tokens += _scaled(given, line.weight)
        cost += _scaled(_cost(spending, line.model, tokens, given), line.weight)
    return Forecast(
        lines=round(sum(line.weight for line in lines)),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cost=cost if spending.prices else None,
        learned_from=sum(each.requests for each in learned.values()),
    )


def _input(line: ProfileLine, known: LearnedUsage | None, spending: Spending) -> Range:
    bytes_per_token = spending.bytes_per_token if known is None else known.bytes / known.input_tokens
    tokens, off = len(line.body) / bytes_per_token, _ASSUMED if known is None else _LEARNED
    return Range(tokens * (1 - off), tokens, tokens * (1 + off))


def _output(known: LearnedUsage | None, largest: int) -> Range:
    if known is None:
        return Range(0.0, largest / 2, largest)
    usual = known.output_tokens / known.requests
    low, likely, high = (min(each, largest) for each in (usual * (1 - _OUTPUT), usual, usual * (1 + _OUTPUT)))
    return Range(low, likely, high)


def _cost(spending: Spending, model: str, tokens: Range, given: Range) -> Range:
    def at(of: Callable[[Range], float]) -> float:
        return spending.cost(model, Usage(math.ceil(of(tokens)), 0, math.ceil(of(given))))

    return Range(at(lambda each: each.low), at(lambda each: each.likely), at(lambda each: each.high))


def _scaled(amount: Range, factor: float) -> Range:
    return Range(amount.low * factor, amount.likely * factor, amount.high * factor)


def sample_forecast(
    sample: Sequence[SampledLine], left: int, spending: Spending | None, concurrency: int
) -> Forecast | None:
    """Of `left` lines, from finished ones that were drawn at random; None if there are none."""
    if not sample:
        return None
    priced = spending is not None and bool(spending.prices)
    costs = [
        spending.cost(line.model, Usage(line.input_tokens, 0, line.output_tokens))
        for line in sample
        if spending is not None
    ]
    return Forecast(
        lines=left,
        input_tokens=_mean([line.input_tokens for line in sample], left),
        output_tokens=_mean([line.output_tokens for line in sample], left),
        cost=_mean(costs, left) if priced else None,
        seconds=_time(sample, left, concurrency),
        learned_from=len(sample),
        rough=False,
    )


def _mean(values: Sequence[float], left: int) -> Range:
    """The mean, times the lines that are left, and its error. Of a single value, the error is unknown."""
    count, mean = len(values), sum(values) / len(values)
    if count == 1:
        return Range(0.0, mean * left, 2 * mean * left)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    error = _ERRORS * math.sqrt(variance / count)
    return Range(max(mean - error, 0.0) * left, mean * left, (mean + error) * left)


def _time(sample: Sequence[SampledLine], left: int, concurrency: int) -> Range | None:
    """At best, as many requests are always in flight as may be, and each round takes as long as those of the
    sample. At worst, it goes on as fast as the sample, which may have been too small to use all slots."""
    took = max((line.seconds for line in sample if line.seconds is not None), default=0.0)
    if took <= 0:
        return None
    rounds = math.ceil(len(sample) / concurrency)
    best = left / concurrency * took / rounds
    worst = left * took / len(sample)
    return Range(min(best, worst), (best + worst) / 2, max(best, worst))


def forecast_object(forecast: Forecast) -> dict[str, Any]:
    """As `--json` shows it. Amounts are in dollars."""
    cost = forecast.cost
    return {
        "lines": forecast.lines,
        "input_tokens": _object(forecast.input_tokens, round),
        "output_tokens": _object(forecast.output_tokens, round),
        "cost": None if cost is None else _object(cost, lambda nano: dollars(round(nano))),
        "seconds": None
        if forecast.seconds is None
        else _object(forecast.seconds, lambda each: round(each, 1)),
        "learned_from": forecast.learned_from,
        "rough": forecast.rough,
    }


def _object(amount: Range, displayed: Callable[[float], float]) -> dict[str, float]:
    return {"low": displayed(amount.low), "likely": displayed(amount.likely), "high": displayed(amount.high)}
