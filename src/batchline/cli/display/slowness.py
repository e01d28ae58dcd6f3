"""Why a batch is not faster, in one line."""

import msgspec

from batchline.cli.display.units import about, duration, latency
from batchline.upstreams.view import LimitingBudget, UpstreamView

# A shorter pause is part of the pace.
_MIN_PAUSE = 1.0


class Slowness(msgspec.Struct, frozen=True):
    """`kind` stays the same while only the numbers in `text` change. `trouble`: something is wrong."""

    kind: str
    text: str
    trouble: bool = False


def slowness(view: UpstreamView) -> Slowness | None:
    """What limits the requests to this upstream. None: nothing that it knows of."""
    if view.unavailable_for is not None:
        kind = "unavailable" if view.connects else "unreachable"
        text = f"upstream {kind} for {duration(view.unavailable_for)}, {_next_try(view.next_try)}"
        return Slowness(kind, f"{text}: {view.reason}" if view.reason else text, trouble=True)
    if view.paused_for >= _MIN_PAUSE:
        text = f"upstream asks to wait, next request in {duration(view.paused_for)}"
        return Slowness("pause", text, trouble=True)
    if view.rate_limit is not None:
        return Slowness("rate", f"upstream limits to {about(view.rate_limit)}/s")
    if view.budget is not None:
        return Slowness("budget", _at_budget(view.budget))
    if not view.full:
        return None
    text = f"{view.limit:,} of {view.limit:,} in flight"
    if view.auto:
        text += f" (auto: {view.signal})"
    elif view.limit < view.max_limit:
        text += f" (lowered from {view.max_limit:,} after time-outs)"
    return Slowness("in flight", text if view.p50 is None else f"{text}, p50 {latency(view.p50)}")


def _at_budget(budget: LimitingBudget) -> str:
    rates = [
        f"{per_minute:,} {unit}"
        for per_minute, unit in (
            (budget.requests_per_minute, "requests"),
            (budget.tokens_per_minute, "tokens"),
        )
        if per_minute is not None
    ]
    text = f"at the budget of {' and '.join(rates)} per minute"
    return text if budget.seconds < _MIN_PAUSE else f"{text}, next request in {duration(budget.seconds)}"


def _next_try(seconds: float) -> str:
    return f"next try in {duration(seconds)}" if seconds >= 0.5 else "trying again now"
