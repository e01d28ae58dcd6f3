"""`--max-failed` of `run` and `submit`: when a batch pauses because of its failures."""

from msgspec.structs import replace

from batchline.batches.staging import InvalidStaging, with_max_failed
from batchline.cli.display.console import CommandError
from batchline.model import RunSettings

# By default a batch pauses when its first so many lines all fail alike.
PAUSE_ALIKE = 50


def with_failure_limits(settings: RunSettings, max_failed: str | None) -> RunSettings:
    """The settings with the limit that the user gave, or else with the default. `none`: no limit at all."""
    if max_failed is None:
        return replace(settings, pause_alike=PAUSE_ALIKE)
    if max_failed == "none":
        return settings
    try:
        return with_max_failed(settings, max_failed)
    except InvalidStaging as error:
        raise CommandError(f"--max-failed {error}, or none") from error
