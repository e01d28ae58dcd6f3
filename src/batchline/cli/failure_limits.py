"""`--max-failed` of `run` and `submit`: when a batch pauses because of its failures."""

import re

from msgspec.structs import replace

from batchline.cli.display.console import CommandError
from batchline.model import RunSettings

# By default a batch pauses when its first so many lines all fail alike.
PAUSE_ALIKE = 50

_LIMIT = re.compile(r"([0-9]{1,9})|([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")


def with_failure_limits(settings: RunSettings, max_failed: str | None) -> RunSettings:
    """The settings with the limit that the user gave, or else with the default. `none`: no limit at all."""
    if max_failed is None:
        return replace(settings, pause_alike=PAUSE_ALIKE)
    if max_failed == "none":
        return settings
    match = _LIMIT.fullmatch(max_failed)
    if match is None or float(match[2] or 0) > 100:
        raise CommandError(
            f"--max-failed {max_failed!r}: give a number of lines such as 100, a share of all lines such as"
            " 5%, or none"
        )
    if match[1] is not None:
        return replace(settings, max_failed=int(match[1]))
    return replace(settings, max_failed_percent=float(match[2]))
