"""Reuse of earlier answers by `run`: what it does before it creates the batch, and what it says of it."""

from rich.console import Console

from batchline.batches import reuse
from batchline.batches.reuse import ReusePlan
from batchline.model import Batch, File, RunSettings
from batchline.store.session import Session


async def prepared(session: Session, file: File, settings: RunSettings, console: Console | None) -> ReusePlan:
    """What a batch over the file can reuse, ready for its creation. Tells the user, because it may take a
    while."""
    plan = await reuse.plan(session, file.tenant, file.id, settings)
    if plan.files and console is not None:
        console.print("looking for answers of earlier runs", markup=False)
    await reuse.prepare(session, plan)
    return plan


def reused_note(batch: Batch) -> list[str]:
    """For the summary: how many answers were reused, if any."""
    return [f"{batch.reused:,} reused"] if batch.reused else []
