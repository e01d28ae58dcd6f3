"""How fast a provider's rate-limit headers allow requests.

OpenAI and compatible servers send `x-ratelimit-limit-requests`, `-remaining-requests` and
`-reset-requests`, and the same for tokens; Anthropic sends `anthropic-ratelimit-requests-limit` and so on.
All of them fill up continuously: `reset` is when `remaining` will be as high as `limit` again. So the rate is
what is missing, divided by that time, whatever period the limit is for. Only a limit that is nearly used up
slows requests down. Headers that make no sense are ignored.
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

HeaderReader: TypeAlias = Callable[[str], str | None]

# Above this part of the limit, headers say nothing.
_NEARLY_USED = 0.1
_MINUTE = 60.0
_MAX_RESET = 86_400.0
_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_DECIMAL = r"(\d{1,9}(?:\.\d{1,9})?)"
_PLAIN = re.compile(_DECIMAL, re.ASCII)
_DURATION = re.compile(
    rf"(?:{_DECIMAL}d)?(?:{_DECIMAL}h)?(?:{_DECIMAL}m)?(?:{_DECIMAL}s)?(?:{_DECIMAL}ms)?", re.ASCII
)
_SECONDS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)


class ProviderRate(msgspec.Struct, frozen=True):
    """What the provider allows per minute, for so many seconds."""

    per_minute: float
    seconds: float


def provider_rates(header: HeaderReader, unit: str, now: float) -> Iterator[ProviderRate]:
    """Those for `requests` or `tokens`. `now` is Unix time."""
    for limit, remaining, reset in _names(unit):
        if (text := header(remaining)) is None:
            continue
        rate = _rate(_number(header(limit)), _number(text), _seconds(header(reset), now))
        if rate is not None:
            yield rate


def _names(unit: str) -> list[tuple[str, str, str]]:
    """The headers of a limit, of what remains of it, and of when it will be full."""
    units = (unit, "input-tokens", "output-tokens") if unit == "tokens" else (unit,)
    return [
        (f"x-ratelimit-limit-{unit}", f"x-ratelimit-remaining-{unit}", f"x-ratelimit-reset-{unit}"),
        *(
            (f"{begin}-limit", f"{begin}-remaining", f"{begin}-reset")
            for begin in (f"anthropic-ratelimit-{each}" for each in units)
        ),
    ]


def _rate(limit: int | None, remaining: int | None, reset: float | None) -> ProviderRate | None:
    if limit is None or remaining is None or reset is None:
        return None
    if not limit > 0 or not 0 <= remaining <= limit * _NEARLY_USED or not 0 < reset <= _MAX_RESET:
        return None
    return ProviderRate((limit - remaining) * _MINUTE / reset, reset)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text.strip()) else None


def _seconds(text: str | None, now: float) -> float | None:
    """A duration such as 6m0s or 12ms, as OpenAI writes it, a number of seconds, or a time, as Anthropic
    does."""
    text = (text or "").strip()
    if not text:
        return None
    if _PLAIN.fullmatch(text):
        return float(text)
    if (parts := _DURATION.fullmatch(text)) is not None:
        return sum(float(part) * unit for part, unit in zip(parts.groups(), _SECONDS, strict=True) if part)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now
