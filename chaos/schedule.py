"""The schedule of a round: orders and faults, derived only from the seed and the number of the round.

A round is a storm, in which clients order batches and the nemesis injects faults, and a calm, in which all
faults have ended and everything must finish. Times are seconds from the start of the storm. Workers and
batches are identified by their index, so the same seed hits the same ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Literal
from zlib import crc32

from batchline.model import DEFAULT_TENANT

STORM = 30.0
"""Seconds in which faults begin. Faults that still last then are ended."""
LEASE = 2.0
"""The workers' lease in seconds."""
TIMEOUT = 20.0
"""Seconds per request: longer than a worker is frozen, even twice in a row on a machine that stalls for as
long, so that only the upstream uses up attempts."""
ATTEMPTS = 4
"""Attempts per line."""

EVERYBODY = -1


class Fault(StrEnum):
    """The kinds of faults. The value is the name in the report."""

    KILL_WORKER = "worker killed (SIGKILL)"
    FREEZE_WORKER = "worker frozen beyond its lease (SIGSTOP)"
    SHIFT_CLOCK = "worker killed and started with another clock"
    KILL_POSTGRES = "PostgreSQL killed (SIGKILL)"
    STOP_POSTGRES = "PostgreSQL stopped at once (immediate)"
    CUT = "database connections cut"
    DELAY = "database connections delayed"
    HALF_OPEN = "database connections half-open"
    FULL_STORE = "object store full"
    LOST_STORE = "object store away"
    HANG = "upstream hangs"
    DROP = "upstream drops connections"
    REFUSE = "upstream answers 429, 500 or 503"
    LATE = "upstream answers late, and twice"
    FORGET = "upstream runs a key again"
    CANCEL = "batch cancelled"
    PAUSE = "batch paused, then resumed"
    DEADLINE = "batch with a short deadline"
    KILL_SERVER = "API server killed (SIGKILL)"
    FAIL_FINALIZING = "one batch cannot be finalized"
    READ_ONLY = "database read-only, connections ended"
    FULL_DATABASE = "database disk full"
    OVERSIZED = "upstream answers of many megabytes"
    FLOOD = "a tenant floods the server and orders many batches"
    STARVE = "another upstream refuses or stalls"
    HOLD_SNAPSHOT = "another session holds a snapshot open"
    DOWN = "upstream down for a while"
    RESTART = "upstream restarts, and loses what is in flight"
    CAPACITY = "upstream works on few requests at a time"


AT_UPSTREAM = (
    Fault.HANG,
    Fault.DROP,
    Fault.REFUSE,
    Fault.LATE,
    Fault.FORGET,
    Fault.OVERSIZED,
    Fault.STARVE,
    Fault.CAPACITY,
)
OF_THE_UPSTREAMS_PROCESS = (Fault.DOWN, Fault.RESTART)
OF_AN_ORDER = (Fault.CANCEL, Fault.PAUSE, Fault.FAIL_FINALIZING)
ON_THE_WIRE = (Fault.CUT, Fault.DELAY, Fault.HALF_OPEN)

# Minimum and maximum duration in seconds. Faults that are not listed end at once.
_LASTING: dict[Fault, tuple[float, float]] = {
    Fault.KILL_WORKER: (0.0, 2 * LEASE),
    Fault.FREEZE_WORKER: (1.2 * LEASE, 2.0 * LEASE),
    Fault.SHIFT_CLOCK: (0.0, 1.0),
    Fault.KILL_POSTGRES: (0.1, 3.0),
    Fault.STOP_POSTGRES: (0.1, 3.0),
    Fault.DELAY: (1.0, 6.0),
    Fault.HALF_OPEN: (2.0, 10.0),
    Fault.FULL_STORE: (2.0, 8.0),
    Fault.LOST_STORE: (2.0, 8.0),
    Fault.HANG: (0.5, 3.0),
    Fault.DROP: (0.5, 4.0),
    Fault.REFUSE: (0.5, 4.0),
    Fault.LATE: (0.5, 3.0),
    Fault.FORGET: (2.0, 8.0),
    Fault.PAUSE: (1.0, 6.0),
    Fault.KILL_SERVER: (0.1, 3.0),
    Fault.FAIL_FINALIZING: (4.0, 12.0),
    Fault.READ_ONLY: (1.0, 8.0),
    Fault.FULL_DATABASE: (1.0, 6.0),
    Fault.OVERSIZED: (1.0, 3.0),
    Fault.FLOOD: (2.0, 8.0),
    Fault.STARVE: (4.0, 12.0),
    Fault.HOLD_SNAPSHOT: (4.0, 20.0),
    Fault.DOWN: (2.0, 8.0),
    Fault.RESTART: (0.1, 1.0),
    Fault.CAPACITY: (2.0, 8.0),
}

# Minimum and maximum strength; its meaning depends on the fault.
_STRENGTHS: dict[Fault, tuple[float, float]] = {
    Fault.SHIFT_CLOCK: (-7200.0, 7200.0),  # seconds; the steady clock also runs up to 5 % fast or slow
    Fault.DELAY: (0.02, 0.6),  # seconds for each piece of data, in each direction
    Fault.HALF_OPEN: (0.0, 1.0),  # above one half, new connections are half-open too
    Fault.HANG: (0.02, 0.3),  # share of the keys
    Fault.DROP: (0.05, 0.5),
    Fault.REFUSE: (0.05, 0.5),
    Fault.LATE: (0.05, 0.3),
    Fault.FORGET: (1.0, 1.0),
    Fault.OVERSIZED: (0.001, 0.006),
    Fault.FLOOD: (10.0, 40.0),  # batches
    Fault.STARVE: (0.0, 1.0),  # below one half it answers 429, above it is slow
    Fault.CAPACITY: (1.0, 9.0),  # requests at a time
}

_KILLABLE = tuple(fault for fault in Fault if fault is not Fault.DEADLINE)
_MODELS = ("sim-small", "sim-large", "sim-other")
_SHORT_WINDOWS = ("5s", "9s", "15s")
_LONG_WINDOW = "24h"
_STARVING_LINES = 120


@dataclass(frozen=True, slots=True)
class Stroke:
    """One fault. `whom` is a worker or an order, depending on the fault."""

    at: float
    fault: Fault
    whom: int
    lasts: float
    strength: float

    def __str__(self) -> str:
        whom = "" if self.whom == EVERYBODY else f" #{self.whom}"
        strength = f", strength {self.strength:.2f}" if self.strength else ""
        lasts = f", for {self.lasts:.1f} s" if self.lasts else ""
        return f"{self.at:5.1f} s  {self.fault}{whom}{lasts}{strength}"


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """A batch that a client will request. Its name and the line number determine each line."""

    name: str
    at: float
    lines: int
    models: tuple[str, ...]
    # Every n-th line is refused by the upstream; 0: none.
    every_bad: int
    window: str
    through: Literal["engine", "api"]
    tenant: str = DEFAULT_TENANT
    # It goes to the second upstream, which refuses or stalls.
    starving: bool = False

    @property
    def short(self) -> bool:
        return self.window != _LONG_WINDOW

    @property
    def steps(self) -> str | None:
        """Every third batch runs in steps, whatever fails."""
        return "5%,10%,..." if crc32(self.name.encode()) % 3 == 0 else None

    def __str__(self) -> str:
        bad = f", each {self.every_bad}th line bad" if self.every_bad else ""
        return (
            f"{self.at:5.1f} s  order {self.name} through the {self.through}: {self.lines} lines of"
            f" {len(self.models)} models, window {self.window}{bad}"
        )


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """A batch of the app in chaos/pipeline_app.py. Its name determines its items and what they emit."""

    name: str
    at: float
    items: int

    def __str__(self) -> str:
        return f"{self.at:5.1f} s  pipeline {self.name}: {self.items} items for the first stage"


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    round: int
    orders: tuple[BatchOrder, ...]
    strokes: tuple[Stroke, ...]
    pipelines: tuple[PipelineOrder, ...] = ()

    def __str__(self) -> str:
        rows: list[BatchOrder | PipelineOrder | Stroke] = [*self.orders, *self.pipelines, *self.strokes]
        rows.sort(key=lambda row: row.at)
        return "\n".join([f"seed {self.seed}, round {self.round}", *(f"  {row}" for row in rows)])


def schedule(seed: int, round_no: int, workers: int, only: Sequence[Fault] = ()) -> Schedule:
    """Create the schedule: the same for the same arguments on every machine.

    `only`: these faults; empty: all.
    """
    dice = Random(f"{seed}/{round_no}/{workers}")
    orders = tuple(_orders(dice, f"{seed}-{round_no}"))
    faults = tuple(fault for fault in _KILLABLE if not only or fault in only)
    strokes = sorted(_strokes(dice, workers, orders, faults), key=lambda stroke: stroke.at)
    # Other dice, so that pipelines change no other part of a schedule.
    pipelines = _pipelines(Random(f"{seed}/{round_no}/pipelines"), f"{seed}-{round_no}")
    return Schedule(seed, round_no, orders, tuple(strokes), tuple(pipelines))


def orders_of(stroke: Stroke, prefix: str) -> list[BatchOrder]:
    """The batches that a fault creates: those of a flooding tenant, or of a starving upstream."""
    match stroke.fault:
        case Fault.FLOOD:
            return [
                BatchOrder(
                    f"{prefix}-flood-{stroke.at:g}-{number}",
                    stroke.at,
                    2,
                    _MODELS[:1],
                    0,
                    _LONG_WINDOW,
                    "engine",
                    tenant="flood",
                )
                for number in range(int(stroke.strength))
            ]
        case Fault.STARVE:
            name = f"{prefix}-starving-{stroke.at:g}"
            return [
                BatchOrder(
                    name, stroke.at, _STARVING_LINES, _MODELS[:1], 0, _LONG_WINDOW, "engine", starving=True
                )
            ]
        case _:
            return []


def _orders(dice: Random, prefix: str) -> Iterator[BatchOrder]:
    for number in range(dice.randint(7, 11)):
        # Only direct clients may use a window other than a day: the server allows only that one.
        through: Literal["engine", "api"] = "api" if dice.random() < 0.5 else "engine"
        short = through == "engine" and dice.random() < 0.3
        yield BatchOrder(
            name=f"{prefix}-{number}",
            at=round(dice.uniform(0.0, 0.7 * STORM), 2),
            lines=dice.choice((1, 7, 60, 200, 400, 700)),
            models=tuple(dice.sample(_MODELS, dice.randint(1, len(_MODELS)))),
            every_bad=dice.choice((0, 0, 13, 50)),
            window=dice.choice(_SHORT_WINDOWS) if short else _LONG_WINDOW,
            through=through,
        )


def _pipelines(dice: Random, prefix: str) -> Iterator[PipelineOrder]:
    for number in range(dice.randint(2, 4)):
        at = round(dice.uniform(0.0, 0.7 * STORM), 2)
        yield PipelineOrder(f"{prefix}-pipeline-{number}", at, dice.choice((1, 20, 80, 200)))


def _strokes(
    dice: Random, workers: int, orders: Sequence[BatchOrder], faults: Sequence[Fault]
) -> Iterator[Stroke]:
    """Each kind of fault once, and as many again of random kinds; faults of workers are the most frequent."""
    weights = [4 if fault is Fault.KILL_WORKER or fault is Fault.FREEZE_WORKER else 1 for fault in faults]
    for fault in (*faults, *dice.choices(faults, weights, k=dice.randint(6, 14))):
        minimum, maximum = _LASTING.get(fault, (0.0, 0.0))
        whom = _whom(dice, fault, workers, len(orders))
        at = dice.uniform(0.5, STORM - 0.5)
        if fault in OF_AN_ORDER:
            # Some time after the order, so that the batch exists and runs if all goes well.
            after = 0.0 if fault is Fault.FAIL_FINALIZING else dice.uniform(0.5, 5.0)
            at = min(orders[whom].at + after, STORM - 0.5)
        yield Stroke(
            at=round(at, 2),
            fault=fault,
            whom=whom,
            lasts=round(dice.uniform(minimum, maximum), 2),
            strength=round(dice.uniform(*_STRENGTHS.get(fault, (0.0, 0.0))), 4),
        )


def _whom(dice: Random, fault: Fault, workers: int, orders: int) -> int:
    members = list(range(workers))
    match fault:
        case Fault.KILL_WORKER | Fault.FREEZE_WORKER | Fault.SHIFT_CLOCK:
            return dice.choice(members)
        case Fault.CUT | Fault.DELAY | Fault.HALF_OPEN:
            return dice.choice([EVERYBODY, *members])
        case Fault.CANCEL | Fault.PAUSE | Fault.FAIL_FINALIZING:
            return dice.randrange(orders)
        case _:
            return EVERYBODY
