"""Why items failed, as lines for people."""

from collections.abc import Sequence

from batchline.cli.display.units import counted
from batchline.model import CauseCount
from batchline.model.failure import OTHER

_MAX_LINES = 5


def failure_lines(causes: Sequence[CauseCount], limit: int = _MAX_LINES) -> list[str]:
    """A line for each of the most frequent causes, and one for the rest:
    `412 × 404 model not found: "gpt-5-mini", e.g. q-34`, or `57 retrying: 503 overloaded, e.g. q-8`."""
    lines = [_line(each) for each in causes[:limit]]
    if rest := causes[limit:]:
        concerned = sum(each.count + each.retrying for each in rest)
        causes_left = counted(len(rest), "more cause")
        lines.append(f"{concerned:,} × {causes_left}; --json lists them")
    return lines


def _line(each: CauseCount) -> str:
    example = "" if each.example is None else f", e.g. {each.example}"
    if each.key == OTHER.key:
        return f"{each.count:,} × {each.message}"
    why = f"{each.code.removeprefix('http_')} {each.message}".rstrip()
    retrying = f"{each.retrying:,} retrying"
    if not each.count:
        return f"{retrying}: {why}{example}"
    return f"{each.count:,} × {why}{example}" + (f" ({retrying})" if each.retrying else "")
