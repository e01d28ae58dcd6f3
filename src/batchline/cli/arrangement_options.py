"""Options of `run` and `submit` that arrange the lines of a new batch, and what commands say of them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

from batchline.batches.arrangement import InvalidArrangement, check
from batchline.cli.display.console import CommandError
from batchline.model import Batch, RunSettings


class LineOrder(StrEnum):
    FILE = "file"
    PREFIX = "prefix"


Dedupe = Annotated[
    bool, typer.Option("--dedupe", help="Send identical lines once; all of them get the answer.")
]
Order = Annotated[
    LineOrder,
    typer.Option(
        "--order",
        help="prefix: send lines whose prompts begin alike together, for the server's prefix cache. The"
        " output stays in the order of the input.",
    ),
]


@dataclass(frozen=True, slots=True)
class ArrangementOptions:
    dedupe: Dedupe = False
    order: Order = LineOrder.FILE

    def applied(self, settings: RunSettings) -> RunSettings:
        """The settings with these. Raises CommandError."""
        order: Literal["prefix"] | None = "prefix" if self.order is LineOrder.PREFIX else None
        arranged = replace(settings, dedupe=self.dedupe, order=order)
        try:
            check(arranged)
        except InvalidArrangement as error:
            raise CommandError(f"--{error.param} {error}") from error
        return arranged


def kept(settings: RunSettings, batch: Batch) -> tuple[RunSettings, str | None]:
    """The settings for a batch that exists: its lines stay as they were arranged when it was created. And a
    note, if the user asks for something else."""
    found = batch.settings
    missing = [
        name
        for name, wanted, has in (
            ("--dedupe", settings.dedupe, found.dedupe),
            ("--order prefix", settings.order, found.order),
        )
        if wanted and not has
    ]
    note = None
    if missing:
        note = f"{' and '.join(missing)}: this batch began without, and continues so; --fresh starts over"
    return replace(settings, dedupe=found.dedupe, order=found.order), note


def duplicates_line(batch: Batch) -> str | None:
    """How many lines were not sent, because others are identical; None: it has no such lines."""
    if batch.finalizing_at is None and batch.settings.dedupe and batch.step_total is not None:
        waiting = batch.total - batch.left_out - batch.step_total
        return f"{waiting:,} of {batch.total:,} lines wait for the answers of identical lines"
    if not batch.duplicates:
        return None
    return f"{batch.duplicates:,} of {batch.total:,} lines were answered by another line's answer"
