"""One round: a storm of faults, a calm in which everything must end, and the checks."""

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from uuid import UUID

import psycopg

from batchline.batches.finalize import sweep_objects
from batchline.files.objects import Objects
from batchline.store.session import Session
from chaos import evidence
from chaos.checker import ChaosFinding, FindingKind, Tally, check, check_displayed
from chaos.clients import Placed
from chaos.nemesis import Nemesis
from chaos.pipeline_checker import PlacedPipeline, check_pipeline
from chaos.schedule import Fault, Schedule
from chaos.world import World

# A lease, the longest poll interval, the retries of a line that hung at every attempt, and a margin for a
# busy machine.
_CALM_LIMIT = 300.0
# A finalizer that has lost its batch may still be writing its files, and removes them then.
_SWEEP_LIMIT = 60.0
_LOOK = 0.25


@dataclass(slots=True)
class RoundOutcome:
    """The faults and findings of one round."""

    schedule: Schedule
    faults: Counter[Fault] = field(default_factory=Counter)
    tally: Tally = field(default_factory=Tally)
    findings: list[ChaosFinding] = field(default_factory=list)
    calm: float = 0.0
    """Seconds from the end of the last fault to the end of the last batch."""
    swept: int = 0
    """Objects that killed finalizers left and the sweep removed."""


async def play(world: World, schedule: Schedule, known: set[UUID]) -> RoundOutcome:
    """Run a round. `known` are the batches of earlier rounds; this round's are added."""
    outcome = RoundOutcome(schedule)
    await world.ready()
    orders = [Placed(order) for order in schedule.orders]
    pipelines = [PlacedPipeline(order) for order in schedule.pipelines]
    submitting = [asyncio.create_task(_submit(world, placed)) for placed in orders]
    submitting += [asyncio.create_task(_submit_pipeline(world, placed)) for placed in pipelines]
    nemesis = Nemesis(world, orders, submitting)
    try:
        await nemesis.rage(schedule.strokes)
        await world.heal()
        healed = monotonic()
        outcome.findings += await _come_to_an_end(world, orders, submitting)
        outcome.calm = monotonic() - healed
    finally:
        for task in submitting:
            task.cancel()
        await asyncio.gather(*submitting, return_exceptions=True)
    world.forget_connections()
    outcome.faults = nemesis.struck
    outcome.faults[Fault.DEADLINE] += sum(placed.order.short for placed in orders)
    await _examine(world, orders, pipelines, known, outcome)
    return outcome


async def _submit(world: World, placed: Placed) -> None:
    await asyncio.sleep(placed.order.at)
    await world.clients.submit(placed)


async def _submit_pipeline(world: World, placed: PlacedPipeline) -> None:
    await asyncio.sleep(placed.order.at)
    placed.batch_id = await world.pipelines.submit(placed.order)


async def _come_to_an_end(
    world: World, orders: list[Placed], submitting: list[asyncio.Task[None]]
) -> list[ChaosFinding]:
    """Wait until all orders are confirmed and all batches have ended.

    If that takes longer than the limit, it is a finding.
    """
    try:
        async with asyncio.timeout(_CALM_LIMIT):
            await asyncio.gather(*submitting)
            for placed in orders:
                if placed.paused:
                    await world.clients.resume(placed)
            await _all_ended(world)
    except TimeoutError:
        return [
            ChaosFinding(
                FindingKind.WRONG, "stuck", f"not everything had ended {_CALM_LIMIT:g} s after the last fault"
            )
        ]
    return []


async def _all_ended(world: World) -> None:
    while True:
        # A server that recovers from a full disk may refuse connections for a moment.
        with suppress(psycopg.OperationalError):
            left = await asyncio.to_thread(evidence.unfinished, world.postgres.url)
            if not left and not world.upstream.in_flight:
                return
        await asyncio.sleep(_LOOK)


async def _examine(
    world: World,
    orders: list[Placed],
    pipelines: list[PlacedPipeline],
    known: set[UUID],
    outcome: RoundOutcome,
) -> None:
    url = world.postgres.url
    found = {batch.id: batch for batch in evidence.batches(url, world.objects, list(known))}
    of_apps = {placed.batch_id for placed in pipelines}
    of_lines = {batch_id: batch for batch_id, batch in found.items() if batch_id not in of_apps}
    outcome.tally, findings = check(orders, of_lines, world.upstream.ledger.entries)
    outcome.findings += findings
    for pipeline in pipelines:
        batch = None if pipeline.batch_id is None else found.get(pipeline.batch_id)
        outcome.findings += check_pipeline(pipeline, batch, outcome.tally)
    for placed in orders:
        if placed.order.through == "api" and placed.batch_id in found:
            displayed = await world.clients.read(placed.batch_id)
            outcome.findings += check_displayed(found[placed.batch_id], displayed)
    outcome.findings += evidence.left_over(url)
    outcome.findings += await _sweep(world, outcome)
    outcome.findings += await _doctor(world)
    for member in world.members:
        outcome.findings += [ChaosFinding(FindingKind.WRONG, member.name, what) for what in member.tracebacks]
        member.tracebacks.clear()
    world.upstream.ledger.forget_round()
    known.update(found)


async def _sweep(world: World, outcome: RoundOutcome) -> list[ChaosFinding]:
    """Remove what killed finalizers left. What is wrong with the objects then, and stays so, is a finding."""
    limit = monotonic() + _SWEEP_LIMIT
    async with Session(world.postgres.url, "chaos") as session:
        while True:
            outcome.swept += await sweep_objects(session, Objects.at(world.objects), timedelta(0))
            found = evidence.unrecorded_objects(world.postgres.url, world.objects)
            if not found or monotonic() >= limit:
                return found
            await asyncio.sleep(_LOOK)


async def _doctor(world: World) -> list[ChaosFinding]:
    """Run `batchline doctor`, as an operator would."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "batchline", "doctor", "--database", world.postgres.url),
        *("--data-dir", str(world.folder / "data")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return [] if process.returncode == 0 else [ChaosFinding(FindingKind.WRONG, "doctor", said.decode())]
