"""Staged execution, as users ask for it: steps, a sample, and how many lines may fail."""

import re

import msgspec
from msgspec.structs import replace

from batchline.model import RunSettings, StepPlan

MAX_STEP_PAUSE = 7 * 86_400.0
MAX_SAMPLE = 10_000
_MAX_SIZES = 100
_MAX_GROWTH = 1000.0
_MORE = ("...", "…")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


class InvalidStaging(ValueError):
    """A wrong option; `param` is its name in the API."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def parse_steps(text: str) -> StepPlan:
    """`1,2,4,...` goes on in the same way, `1,10,100` ends with the rest, `10%` and `100` repeat."""
    given = [part.strip() for part in text.split(",")]
    goes_on = len(given) > 1 and given[-1] in _MORE
    sizes = given[:-1] if goes_on else given
    if not 1 <= len(sizes) <= _MAX_SIZES or not all(map(_is_size, sizes)):
        raise InvalidStaging(
            "steps",
            f"{text[:100]!r}: give sizes such as 1,2,4,... or 1,10,100, or a share of all lines such as 10%",
        )
    sizes = [size.replace(" ", "") for size in sizes]
    if len(sizes) == 1:
        return StepPlan(tuple(sizes), growth=1.0)
    return StepPlan(tuple(sizes), growth=_growth(sizes[-2], sizes[-1]) if goes_on else None)


def _is_size(size: str) -> bool:
    if _NUMBER.fullmatch(size):
        return int(size) >= 1
    match = _SHARE.fullmatch(size)
    return match is not None and 0 < float(match[1]) <= 100


def _growth(before: str, last: str) -> float:
    if before.endswith("%") != last.endswith("%"):
        raise InvalidStaging("steps", f"{before},{last},...: the last two sizes must be of one kind")
    growth = float(last.rstrip("%")) / float(before.rstrip("%"))
    if not 1 <= growth <= _MAX_GROWTH:
        raise InvalidStaging("steps", f"{before},{last},...: a step has 1 to 1000 times as many lines")
    return growth


def with_max_failed(settings: RunSettings, max_failed: str | int) -> RunSettings:
    """`100` lines, or `5%` of them."""
    text = str(max_failed).strip()
    share = _SHARE.fullmatch(text)
    if _NUMBER.fullmatch(text):
        return replace(settings, max_failed=int(text))
    if share is None or float(share[1]) > 100:
        raise InvalidStaging(
            "max_failed",
            f"{text[:100]!r}: give a number of lines such as 100, or a share of all lines such as 5%",
        )
    return replace(settings, max_failed_percent=float(share[1]))


def with_steps(
    settings: RunSettings, steps: str | None, *, pause: float | None = None, sample: int | None = None
) -> RunSettings:
    """The settings with a plan, if steps or a sample are given."""
    if pause is not None and steps is None:
        raise InvalidStaging("step_pause_seconds", "a pause between steps needs steps")
    if pause is not None and not 0 <= pause <= MAX_STEP_PAUSE:
        raise InvalidStaging("step_pause_seconds", "a pause between steps has at most 7 days")
    if sample is not None and not 1 <= sample <= MAX_SAMPLE:
        raise InvalidStaging("sample", f"a sample has 1 to {MAX_SAMPLE:,} lines")
    if steps is None and sample is None:
        return settings
    plan = StepPlan() if steps is None else parse_steps(steps)
    return replace(settings, steps=replace(plan, pause=pause or 0.0, sample=sample))


def staged(
    settings: RunSettings,
    *,
    steps: str | None = None,
    pause: float | None = None,
    sample: int | None = None,
    max_failed: str | int | None = None,
) -> RunSettings:
    """As a client of the server asks for it. A batch that runs in steps stops at the first failure unless it
    says how many may fail: else it would run all steps, whatever happens."""
    settings = with_steps(settings, steps, pause=pause, sample=sample)
    if max_failed is None and steps is not None:
        max_failed = 0
    return settings if max_failed is None else with_max_failed(settings, max_failed)


class StagingRequest(msgspec.Struct, frozen=True):
    """How a client of the server wants its batch to run. Raises InvalidStaging when it is applied."""

    steps: str | None = None
    step_pause_seconds: float | None = None
    sample: int | None = None
    max_failed: str | int | None = None

    def applied(self, settings: RunSettings) -> RunSettings:
        return staged(
            settings,
            steps=self.steps,
            pause=self.step_pause_seconds,
            sample=self.sample,
            max_failed=self.max_failed,
        )


AT_ONCE = StagingRequest()
