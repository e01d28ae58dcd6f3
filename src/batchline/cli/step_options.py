"""Options of `run`, `submit` and `ops submit` that run a batch in steps."""

from dataclasses import dataclass
from typing import Annotated

import typer
from msgspec.structs import replace

from batchline.batches.staging import MAX_STEP_PAUSE, InvalidStaging, with_steps
from batchline.cli.display.console import CommandError
from batchline.config import durations
from batchline.model import RunSettings

Steps = Annotated[
    str | None,
    typer.Option(
        "--steps",
        metavar="SIZES",
        help="Run so many lines first, and more when these have ended: 1,2,4,... or 1,10,100 or 10%."
        " Stops at --max-failed, by default at the first failure.",
    ),
]
StepPause = Annotated[
    str | None,
    typer.Option("--step-pause", metavar="TIME", help="Wait so long between two steps: 30s, 5m, 1h."),
]


@dataclass(frozen=True, slots=True)
class StepOptions:
    steps: Steps = None
    step_pause: StepPause = None

    @property
    def seconds(self) -> float | None:
        """The pause between two steps. Raises CommandError."""
        if self.step_pause is None:
            return None
        try:
            seconds = durations.seconds(self.step_pause)
        except ValueError as error:
            raise CommandError(f"--step-pause {self.step_pause!r}: {error}") from error
        if seconds > MAX_STEP_PAUSE:
            raise CommandError(f"--step-pause {self.step_pause!r}: give at most 7d")
        if self.steps is None:
            raise CommandError("--step-pause is the pause between steps; give --steps, too")
        return seconds

    def applied(
        self, settings: RunSettings, max_failed: str | None, sample: int | None = None
    ) -> RunSettings:
        """The settings with these steps. Without --max-failed, the first failure stops them."""
        try:
            planned = with_steps(settings, self.steps, pause=self.seconds, sample=sample)
        except InvalidStaging as error:
            raise CommandError(f"--{error.param} {error}") from error
        if self.steps is None or max_failed is not None:
            return planned
        return replace(planned, max_failed=0, pause_alike=None)
