"""Random lives of tiny batches, step by step against a model in plain Python, on a real PostgreSQL.

Hypothesis chooses what happens: workers claim, answer, answer twice, answer too late, park, die and
come back; batches reuse earlier answers, run in steps, are fed by their items and by callers, get another
priority and concurrency, are paused, resumed, cancelled and expire, one by one and many at once; finalizers
are lost; batches that have ended are retried. After every act the database is read with plain SQL and
compared with the invariant (docs/design.md) and with the model; at last all is driven to its end, retried,
and driven to its end again.

A failure prints its steps and the command that reruns it. BATCHLINE_TEST_EXAMPLES=2000 makes it a long soak.
"""

import asyncio
import functools
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar, cast
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from batchline.batches.retry import NotRetryable, retry
from batchline.governance import bulk_actions
from batchline.governance.access import Actor
from batchline.governance.batch_acts import ActKind, BatchAct, perform
from batchline.governance.errors import Conflict
from batchline.model import (
    Batch,
    BatchChange,
    BatchStatus,
    Claim,
    Completed,
    Deferred,
    Failed,
    Item,
    Retried,
    RetrySelection,
    Role,
    RunSettings,
    StepPlan,
    Unfinished,
    Usage,
    Verdict,
)
from batchline.model.bulk_action import BatchFilter, BulkKind
from batchline.model.emission import PYTHON, Emission
from batchline.store import batches, doctor, feeding, maintenance, spans, steps
from batchline.store.events import event_of
from batchline.store.session import Session
from batchline.store.spans import Scope, WorkerId
from tests.support import builders
from tests.support.builders import LATER, a_batch, a_pipeline, a_worker, sql
from tests.support.governance import some_rules
from tests.support.reuse import a_reusing_batch

T = TypeVar("T")
P = ParamSpec("P")

SETTINGS = settings(
    max_examples=int(os.environ.get("BATCHLINE_TEST_EXAMPLES", "70")),
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

COUNTERS = ("completed", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
TENANTS = ("left", "right")
FIRST, SECOND = f"{PYTHON}first", f"{PYTHON}second"
WORKERS = range(3)
# One more, who comes when all others are dead.
LAST = len(WORKERS)
Reason = Literal["cancel", "expire", "pause"]
RULES = some_rules()

# The states of items in the view, and the names of those that counts call otherwise.
STATES = ("pending", "claimed", "processing", "retrying", "completed", "failed", "canceled", "expired")
COUNTED_AS = {"claimed": "in_progress", "processing": "in_progress", "canceled": "cancelled"}

# What the model knows


@dataclass
class BatchModel:
    id: UUID
    tenant: str
    total: int
    upstream: str | None = None
    reused: int = 0
    priority: int = 0
    # No claim of several batches takes more lines of a lane.
    concurrency: int | None = None
    paused: bool = False
    closing: Literal["cancel", "expire"] | None = None
    overdue: bool = False
    frozen: bool = False
    finalizer: int | None = None
    ended: bool = False
    counters: Counter[str] = field(default_factory=Counter)
    # How often it has ended or will end: once, and once more after each retry.
    ends: int = 1
    # Lines that an earlier end left without a result, and that a retry has left out; and how that end was.
    left_out: int = 0
    left_out_as: Literal["cancel", "expire"] | None = None
    # The window that a retry gives. A new batch has an hour, whatever this says.
    window: str = "24h"
    # The length of the window, and when it began.
    deadline: tuple[int, int] = (0, 0)
    # Lines of each step, and whether a sample comes first; None: all run at once.
    step_size: int | None = None
    sampling: bool = False
    step: int = 0
    step_total: int | None = None
    # All lines that may run have ended.
    next_step: bool = False
    # It has a stage that is fed by its items.
    piped: bool = False
    # Callers may add items.
    accepting: bool = False

    def freeze(self) -> None:
        self.frozen, self.accepting = True, False
        if self.closing is None:
            self.closing = self.left_out_as
        self.left_out, self.left_out_as = 0, None

    @property
    def open(self) -> bool:
        return not self.paused and self.closing is None

    @property
    def finished(self) -> int:
        return self.counters["completed"] + self.counters["failed"]

    @property
    def status(self) -> BatchStatus:
        if self.ended:
            return {
                None: BatchStatus.COMPLETED,
                "cancel": BatchStatus.CANCELLED,
                "expire": BatchStatus.EXPIRED,
            }[self.closing]
        if self.closing == "cancel":
            return BatchStatus.CANCELLING
        if self.frozen:
            return BatchStatus.FINALIZING
        return BatchStatus.PAUSED if self.paused else BatchStatus.IN_PROGRESS


@dataclass
class LaneModel:
    id: int
    batch: BatchModel
    key: str
    model: str
    # The line number of each ordinal.
    lines: list[int]
    next: int = 0
    # The key of each ordinal that came while the batch ran.
    keys: dict[int, str] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        return len(self.lines) - self.next

    @property
    def fresh(self) -> int:
        """Lines that a claim may take: none, as long as they wait for a later step."""
        return self.pending if self.batch.step_total is None else 0


@dataclass
class SpanModel:
    lane: LaneModel
    ordinals: frozenset[int]
    attempt: int = 1
    # Attempts that do not count, because a retry has put it back.
    before: int = 0
    holder: int | None = None
    due: bool = True
    task: str | None = None
    submission: str | None = None
    # It waits for a later step, and is not due before.
    held_back: bool = False
    # Workers that were lost with it.
    losses: int = 0

    def interrupt(self) -> None:
        """Whoever held it may have submitted it to a provider."""
        if self.task is None:
            self.submission = self.submission or "interrupted"

    def take_from_the_dead(self) -> None:
        self.interrupt()
        self.losses += 1

    @property
    def one_by_one(self) -> bool:
        """Whether a claim gives only one line of it, if the worker that has it now is lost."""
        return self.lane.batch.piped and self.losses + (self.holder is not None) > 1

    @property
    def batch(self) -> BatchModel:
        return self.lane.batch

    def content(self) -> tuple[object, ...]:
        """Everything but whether it is due, which says nothing of a span that is held."""
        due = self.holder is None and self.due
        work = self.lane.id, self.ordinals, self.attempt, self.before
        return *work, self.holder, self.task, self.submission, self.losses, due


@dataclass(frozen=True)
class Outcome:
    kind: str
    attempt: int
    output: str


@dataclass
class Hand:
    """What a worker remembers: it does not know what was taken from it."""

    unread: list[Claim] = field(default_factory=list)
    fresh: list[Item] = field(default_factory=list)
    answered: list[Item] = field(default_factory=list)

    def items(self) -> list[Item]:
        return self.fresh + self.answered


# What the database says, read by plain SQL


@dataclass(frozen=True)
class Seen:
    """All of the database at one moment. A span's holder is given as its worker's id."""

    lanes: dict[int, dict[str, Any]]
    spans: dict[int, dict[str, Any]]
    results: dict[tuple[int, int], dict[str, Any]]
    requests: dict[tuple[int, int], str]
    batches: dict[UUID, Batch]


LOOK = """
SELECT
    (
        SELECT coalesce(json_agg(n), '[]')
        FROM (
            SELECT lane.*, b.finalizing_at IS NOT NULL AS frozen, b.left_out
            FROM batchline.current_lanes AS lane
            JOIN batchline.batches AS b ON b.id = lane.batch_id
        ) AS n
    ),
    (
        SELECT coalesce(json_agg(json_build_object(
            'id', s.id, 'lane_id', s.lane_id, 'batch_id', s.batch_id, 'attempt', s.attempt,
            'before', s.attempts_before, 'losses', s.losses,
            'task_id', s.task_id, 'submission', s.submission, 'worker_id', s.worker_id,
            'due', s.available_at <= now(),
            'ranges', (SELECT json_agg(json_build_array(lower(r), upper(r))) FROM unnest(s.outstanding) AS r)
        )), '[]')
        FROM batchline.spans AS s
    ),
    (
        SELECT coalesce(json_agg(json_build_object(
            'lane_id', r.lane_id, 'ordinal', r.ordinal, 'line_no', r.line_no, 'outcome', r.outcome,
            'attempt', r.attempt, 'output', r.output, 'row', r.xmin::text || r.ctid::text || r::text
        )), '[]')
        FROM batchline.results AS r
    ),
    (SELECT coalesce(json_agg(json_build_array(q.lane_id, q.ordinal, q.state)), '[]')
    FROM batchline.requests AS q),
    (SELECT coalesce(json_agg(b), '[]') FROM batchline.current_batches AS b)
"""


async def look(db: Session) -> Seen:
    ((lanes, span_rows, results, requests, batch_rows),) = await sql(db, LOOK)
    for span in span_rows:
        span["ordinals"] = frozenset(n for low, high in span["ranges"] for n in range(low, high))
    seen = Seen(
        lanes={lane["id"]: lane for lane in lanes},
        spans={span["id"]: span for span in span_rows},
        results={(result["lane_id"], result["ordinal"]): result for result in results},
        requests={(lane_id, ordinal): state for lane_id, ordinal, state in requests},
        batches={batch.id: batch for batch in msgspec.convert(batch_rows, list[Batch])},
    )
    assert len(seen.results) == len(results), "one ordinal of a lane has two results"
    return seen


# The choices

WORKER = st.sampled_from(WORKERS)
PICK = st.integers(0, 11)
LIMIT = st.sampled_from([1, 1, 2, 3, 5, 100])
DELAY = st.sampled_from([0.0, LATER])
# Mostly none: a narrow scope finds nothing most of the time, and a step is wasted.
KEYS = st.sampled_from([None, None, None, (), ("a",), ("b", "shared"), ("a", "b")])
BATCH = st.sampled_from([None, None, None, 0, 1, 2, 3])
KIND = st.sampled_from(["completed", "completed", "failed", "retry", "deferred"])
ANSWERS = st.lists(st.tuples(PICK, KIND, DELAY), min_size=1, max_size=8)
SOME = st.sets(PICK, min_size=1, max_size=4)
# A long lane makes large spans, which are split; several lanes make a claim of many spans.
LANES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.integers(1, 4), min_size=1
) | st.fixed_dictionaries({"a": st.integers(5, 12)})
TENANT = st.sampled_from(TENANTS)
UPSTREAM = st.sampled_from([None, None, "shared"])
PRIORITY = st.sampled_from([-1, 0, 0, 3])
CONCURRENCY = st.sampled_from([None, None, 1, 2])
BULK = st.sampled_from([kind for kind in BulkKind if kind is not BulkKind.DELETE])
REASON = st.sampled_from(["cancel", "expire", "pause", "pause"])
CLOSING = st.sampled_from(["cancel", "expire"])
SIZE = st.integers(1, 3)
ONLY = st.sampled_from([None, frozenset({Unfinished.FAILED}), frozenset(Unfinished) - {Unfinished.FAILED}])


def often(weight: int, step: str, *choices: st.SearchStrategy[Any]) -> list[st.SearchStrategy[Any]]:
    return [st.tuples(st.just(step), *choices) for _ in range(weight)]


# What may happen next: a method of the machine and what it is called with. They are one rule and not a rule
# each, because of rules Hypothesis switches half off in each life (swarm testing), and most of ours need one
# another: half of all lives would end within ten steps that did anything.
STEPS = st.one_of(
    *often(1, "create", LANES, TENANT, UPSTREAM),
    *often(1, "create_over_the_same_file", PICK),
    *often(2, "create_reusing", LANES, TENANT, UPSTREAM),
    *often(2, "create_in_steps", LANES, TENANT, UPSTREAM, SIZE, st.booleans()),
    *often(2, "create_piped", SIZE, TENANT, st.booleans()),
    *often(2, "append", PICK, SIZE),
    *often(1, "release_items", PICK),
    *often(4, "begin_step", PICK),
    *often(2, "close", PICK, REASON),
    *often(2, "resume", PICK),
    *often(2, "change", PICK, PRIORITY, CONCURRENCY),
    *often(2, "act_on_many", TENANT, BULK, PRIORITY),
    *often(1, "conclude", PICK),
    *often(1, "deadline_passes", PICK),
    *often(4, "claim", WORKER, LIMIT, st.none(), st.none(), st.just(True)),
    *often(2, "claim", WORKER, LIMIT, KEYS, BATCH, st.booleans()),
    *often(2, "take_over", PICK, WORKER, st.booleans()),
    *often(1, "fetch", WORKER),
    *often(1, "poll", KEYS, BATCH),
    *often(6, "settle", PICK, ANSWERS),
    *often(3, "settle_all_alike", PICK, KIND, DELAY),
    *often(3, "settle_too_late", PICK, ANSWERS),
    *often(2, "settle_once_more", PICK, ANSWERS),
    *often(1, "work_off", WORKER, LIMIT),
    *often(3, "park", PICK, PICK, SOME, DELAY),
    *often(1, "park_too_late", PICK, PICK, SOME, DELAY),
    *often(2, "ask_for_a_task", WORKER, PICK, DELAY),
    *often(1, "park_a_task_again", PICK, DELAY),
    *often(1, "park_under_a_known_task", PICK, PICK),
    *often(2, "release", WORKER, st.none() | SOME),
    *often(1, "release_unknown", WORKER, SOME),
    *often(1, "die", WORKER, st.booleans()),
    *often(1, "renew", WORKER),
    *often(1, "leave", WORKER),
    *often(2, "time_passes"),
    *often(1, "finalize", WORKER, BATCH),
    *often(2, "take_for_finalizing", WORKER, BATCH),
    *often(2, "finish", WORKER, PICK),
    *often(1, "yield_finalizing", WORKER, PICK),
    *often(1, "retry_lines", PICK, ONLY),
    *often(4, "end_and_retry", WORKER, PICK, LIMIT, CLOSING, ONLY),
)


def when(condition: Callable[[Any], object]) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """A step that does nothing where it makes no sense."""

    def wrap(step: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(step)
        def maybe(*args: P.args, **kwargs: P.kwargs) -> None:
            if condition(args[0]):
                step(*args, **kwargs)

        return maybe

    return wrap


def alike(verdict: Verdict) -> tuple[object, ...]:
    """What makes verdicts one group: the span, the kind, and what else they must have in common."""
    status = verdict.status_code if isinstance(verdict, Completed | Failed) else None
    delay = verdict.delay if isinstance(verdict, Retried | Deferred) else 0.0
    return verdict.item.claim.span_id, type(verdict), status, delay


def late_groups(
    verdicts: Iterable[Verdict], outstanding: Mapping[int, frozenset[int]]
) -> set[tuple[object, ...]]:
    """The groups of which something comes too late; of several verdicts on one item the first counts."""
    first: dict[tuple[int, int], Verdict] = {}
    for each in verdicts:
        first.setdefault((each.item.claim.span_id, each.item.ordinal), each)
    return {
        alike(each)
        for (id, ordinal), each in first.items()
        if ordinal not in outstanding.get(id, frozenset())
    }


class LifeOfItems(RuleBasedStateMachine):
    """One world: batches, workers and their spans, and the model of it."""

    # Set by the test: one loop and one session for all examples, in one database that is wiped between them.
    runner: ClassVar[asyncio.Runner]
    db: ClassVar[Session]
    # Hears all events, and is the ear of all workers.
    listener: ClassVar[psycopg.Connection[tuple[Any, ...]]]

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[BatchModel] = []
        self.lanes: dict[int, LaneModel] = {}
        self.spans: dict[int, SpanModel] = {}
        # Spans that the model expects and whose ids it has not seen yet.
        self.unborn: list[SpanModel] = []
        self.results: dict[tuple[int, int], Outcome] = {}
        self.retries: Counter[tuple[int, int]] = Counter()
        # What was known of the submission of lines that never ran when their batch ended.
        self.lost: dict[tuple[int, int], str] = {}
        self.workers: list[WorkerId] = [a_worker(f"worker {n}") for n in (*WORKERS, LAST)]
        self.live: set[int] = set()
        self.hands = [Hand() for _ in self.workers]
        self.tasks = 0
        self.keys = 0
        self.winners: Counter[UUID] = Counter()
        self.engraved: dict[tuple[int, int], str] = {}
        self.sound = False
        self.run(builders.wipe(self.db))

    def run(self, act: Coroutine[Any, Any, T]) -> T:
        """Whatever fails from here on, teardown must not go on with; the invariant makes all well again."""
        self.sound = False
        return self.runner.run(act)

    # What happens

    @initialize(lanes=LANES, tenant=TENANT)
    def first_batch(self, lanes: dict[str, int], tenant: str) -> None:
        self.create(lanes, tenant, None)

    @rule(step=STEPS)
    def step(self, step: tuple[Any, ...]) -> None:
        name, *choices = step
        getattr(self, name)(*choices)

    # Batches

    @when(lambda self: len(self.batches) < 4)
    def create(self, lanes: dict[str, int], tenant: str, upstream: str | None) -> None:
        self.created(self.run(a_batch(self.db, lanes, tenant=tenant, upstream=upstream)))

    @when(lambda self: 0 < len(self.batches) < 4)
    def create_reusing(self, lanes: dict[str, int], tenant: str, upstream: str | None) -> None:
        file_id = self.run(builders.a_file(self.db, lanes, tenant=tenant))
        settings = RunSettings(upstream=upstream)
        batch = self.run(a_reusing_batch(self.db, file_id, tenant=tenant, settings=settings))
        self.created(batch)
        self.reuses(self.batches[-1])

    @when(lambda self: len(self.batches) < 4)
    def create_in_steps(
        self, lanes: dict[str, int], tenant: str, upstream: str | None, size: int, sample: bool
    ) -> None:
        """It reuses what it can, so lines that are held back lie in spans and past the cursors."""
        file_id = self.run(builders.a_file(self.db, lanes, tenant=tenant))
        plan = StepPlan((str(size),), growth=1.0, sample=2 if sample else None)
        settings = RunSettings(upstream=upstream, steps=plan)
        self.created(self.run(a_reusing_batch(self.db, file_id, tenant=tenant, settings=settings)))
        model = self.batches[-1]
        self.reuses(model)
        if not model.frozen:
            for span in self.unborn:
                span.held_back, span.due = True, False
            model.step_size, model.sampling = size, sample
            model.step_total, model.next_step = model.reused, True
            self.begun(model)

    @when(lambda self: len(self.batches) < 4)
    def create_piped(self, items: int, tenant: str, accepting: bool) -> None:
        """Its first stage feeds the second; if it accepts items, callers feed the first."""
        stages = (stage.removeprefix(PYTHON) for stage in (FIRST, SECOND))
        batch = self.run(a_pipeline(self.db, *stages, items=items, tenant=tenant, accepting=accepting))
        self.created(batch)
        self.batches[-1].piped, self.batches[-1].accepting = True, accepting

    @when(lambda self: any(batch.piped for batch in self.batches))
    def append(self, which: int, items: int) -> None:
        model = self.one_of(which, [batch for batch in self.batches if batch.piped])
        keys = [self.new_key() for _ in range(items)]
        first = self.run(
            feeding.append(self.db, model.id, FIRST, [(key.encode(), body_of(key)) for key in keys])
        )
        lane = self.lane_of(model, FIRST)
        accepted = model.accepting and model.closing is None
        assert first == (lane.next if accepted else None), f"append to a batch that is {model.status}"
        if accepted:
            self.fed(model, FIRST, keys)

    @when(lambda self: any(batch.piped for batch in self.batches))
    def release_items(self, which: int) -> None:
        model = self.one_of(which, [batch for batch in self.batches if batch.piped])
        released = self.run(feeding.release(self.db, model.id))
        assert released == model.accepting, f"release of a batch that is {model.status}"
        model.accepting = False
        if released and model.finished + model.left_out == model.total:
            model.freeze()

    def new_key(self) -> str:
        self.keys += 1
        return f"key-{self.keys}"

    def lane_of(self, model: BatchModel, url: str) -> LaneModel:
        return next(lane for lane in self.lanes.values() if lane.batch is model and lane.key == url)

    def fed(self, model: BatchModel, url: str, keys: Sequence[str]) -> None:
        """One statement has added these items to a stage, each once. They go on with the line numbers of the
        batch, and wait in one free span."""
        lane = self.lane_of(model, url)
        query = """
            SELECT l.line_no, l.custom_id
            FROM batchline.lanes AS n
            JOIN batchline.lines AS l USING (file_no, lane_no)
            WHERE n.id = %(lane)s AND l.ordinal BETWEEN %(first)s AND %(last)s
            ORDER BY l.ordinal
        """
        last = lane.next + len(keys) - 1
        rows = self.run(sql(self.db, query, lane=lane.id, first=lane.next, last=last))
        assert sorted(key for _, key in rows) == sorted(keys), "what was emitted is not what was stored"
        assert {line_no for line_no, _ in rows} == set(range(model.total + 1, model.total + len(keys) + 1))
        lane.keys |= {lane.next + n: key for n, (_, key) in enumerate(rows)}
        lane.lines += [line_no for line_no, _ in rows]
        self.unborn.append(SpanModel(lane, frozenset(range(lane.next, len(lane.lines)))))
        lane.next = len(lane.lines)
        model.total += len(keys)

    def begin_step(self, which: int) -> int:
        """What the worker that ended the step does, or any other, at any time."""
        model = self.batch(which)
        lines = self.run(steps.begin(self.db, model.id))
        assert lines == self.begun(model), f"a step of a batch that is {model.status}"
        return lines

    def begun(self, model: BatchModel) -> int:
        """Begin the next step in the model, if it is due, with the lines that the database has chosen."""
        if model.step_total is None or not model.next_step or not model.open or model.frozen:
            return 0
        seen = self.run(look(self.db))
        rest = model.total - model.left_out - model.step_total
        if model.sampling:
            size = min(rest, 2)
            self.draw(model, seen)
        else:
            size = min(rest, model.step_size or 0)
            model.step += 1
            if size < rest:
                assert self.put_in_spans(model, seen) == size
            for span in [span for span in (*self.spans.values(), *self.unborn) if span.batch is model]:
                if size == rest:
                    span.held_back, span.due = False, span.due or span.held_back
        model.step_total = None if size == rest else model.step_total + size
        model.next_step, model.sampling = False, False
        return size

    def put_in_spans(self, model: BatchModel, seen: Seen) -> int:
        """Lines that were held back come due: whole spans, the first part of a span, and fresh lines."""
        count = 0
        waiting = [
            span for span in (*self.spans.values(), *self.unborn) if span.held_back and span.batch is model
        ]
        back = {row_id: row for row_id, row in seen.spans.items() if UUID(row["batch_id"]) == model.id}
        for span in waiting:
            still = frozenset[int]().union(
                *(
                    row["ordinals"]
                    for row in back.values()
                    if row["lane_id"] == span.lane.id and not row["due"] and row["worker_id"] is None
                )
            )
            begun = span.ordinals - still
            count += len(begun)
            if begun == span.ordinals:
                span.held_back, span.due = False, True
            elif begun:
                assert begun == set(sorted(span.ordinals)[: len(begun)]), "a step takes the first ones"
                self.unborn.append(replace(span, ordinals=begun, held_back=False, due=True))
                span.ordinals -= begun
        for lane in [lane for lane in self.lanes.values() if lane.batch is model]:
            moved = frozenset(range(lane.next, seen.lanes[lane.id]["next"]))
            if moved:
                self.unborn.append(SpanModel(lane, moved))
                lane.next += len(moved)
                count += len(moved)
        return count

    def draw(self, model: BatchModel, seen: Seen) -> None:
        """A sample: all lines are in spans, and the drawn ones are due."""
        self.unborn = [span for span in self.unborn if span.batch is not model]
        self.forget([id for id, span in self.spans.items() if span.batch is model])
        for lane in [lane for lane in self.lanes.values() if lane.batch is model]:
            lane.next = len(lane.lines)
        mine = {id: row for id, row in seen.spans.items() if UUID(row["batch_id"]) == model.id}
        for id, row in mine.items():
            lane = self.lanes[row["lane_id"]]
            self.spans[id] = SpanModel(lane, row["ordinals"], due=row["due"], held_back=not row["due"])
        drawn = sum(len(row["ordinals"]) for row in mine.values() if row["due"])
        assert drawn == min(2, model.total - model.reused)

    def reuses(self, model: BatchModel) -> None:
        """A line has the same body as the lines with its number in other files: the newest answer counts."""
        for lane in [each for each in self.lanes.values() if each.batch is model]:
            for ordinal in range(len(lane.lines)):
                found = self.earlier_answer(lane, ordinal)
                if found is not None:
                    self.results[lane.id, ordinal] = Outcome("completed", 0, found.output)
                    lane.next = ordinal + 1
                    model.reused += 1
            left = frozenset(n for n in range(lane.next) if (lane.id, n) not in self.results)
            if left:
                self.unborn.append(SpanModel(lane, left))
        model.counters["completed"] = model.reused
        model.frozen = model.reused == model.total

    def earlier_answer(self, lane: LaneModel, ordinal: int) -> Outcome | None:
        line_no = lane.lines[ordinal]
        for batch in reversed(self.batches[:-1]):
            if (batch.tenant, batch.upstream) != (lane.batch.tenant, lane.batch.upstream):
                continue
            for other in [each for each in self.lanes.values() if each.batch is batch]:
                if other.model == lane.model and line_no in other.lines:
                    found = self.results.get((other.id, other.lines.index(line_no)))
                    if found is not None and found.kind == "completed":
                        return found
        return None

    @when(lambda self: len(self.batches) < 4 and not all(batch.piped for batch in self.batches))
    def create_over_the_same_file(self, which: int) -> None:
        """Not over one that its batch adds lines to."""
        model = self.one_of(which, [batch for batch in self.batches if not batch.piped])
        batch = self.run(builders.read(self.db, model.id))
        self.created(self.run(a_batch(self.db, file_id=batch.file_id, tenant=batch.tenant)))

    @property
    def moment(self) -> int:
        """Grows with every batch and every retry."""
        return sum(batch.ends for batch in self.batches)

    def created(self, batch: Batch) -> None:
        model = BatchModel(
            batch.id,
            batch.tenant,
            batch.total,
            batch.settings.upstream,
            window=batch.completion_window,
            deadline=(0, self.moment + 1),
        )
        query = """
            SELECT n.id, n.key, n.model, array_remove(array_agg(l.line_no ORDER BY l.ordinal), NULL)
            FROM batchline.lanes AS n
            LEFT JOIN batchline.lines AS l USING (file_no, lane_no)
            WHERE n.batch_id = %(batch)s
            GROUP BY n.id
            ORDER BY n.lane_no
        """
        rows = self.run(sql(self.db, query, batch=batch.id))
        self.batches.append(model)
        self.lanes |= {id: LaneModel(id, model, key, name, lines) for id, key, name, lines in rows}
        self.announced(batch.id)

    def announced(self, batch_id: UUID) -> None:
        for notification in self.listener.notifies(timeout=60):
            event = event_of(notification.payload)
            if event.batch_id == batch_id and event.kind == "open":
                return
        raise AssertionError("a batch was created without a notification")

    @when(lambda self: any(not batch.frozen for batch in self.batches))
    def close(self, which: int, reason: Reason) -> None:
        model = self.batch(which)
        closed = self.run(batches.close(self.db, model.id, reason))
        assert closed == self.closed(model, reason), f"close {reason} of a batch that is {model.status}"

    def closed(self, model: BatchModel, reason: Reason) -> bool:
        if model.frozen or model.closing is not None or (reason == "pause" and model.paused):
            return False
        model.paused = reason == "pause"
        if reason != "pause":
            model.closing = reason
            self.concluded(model)
        return True

    @when(lambda self: any(batch.paused for batch in self.batches))
    def resume(self, which: int) -> None:
        model = self.batch(which)
        resumed = self.run(batches.resume(self.db, model.id))
        assert resumed == self.resumed(model), f"resume of a batch that is {model.status}"

    def resumed(self, model: BatchModel) -> bool:
        if not model.paused or model.frozen:
            return False
        model.paused = False
        self.begun(model)
        return True

    def change(self, which: int, priority: int, concurrency: int | None) -> None:
        model = self.batch(which)
        act = BatchAct(ActKind.CHANGE, change=BatchChange(priority=priority, concurrency=concurrency))
        try:
            self.run(perform(RULES, self.db, self.admin(model.tenant), model.id, act))
        except Conflict:
            assert model.frozen or model.closing, f"a change of a batch that is {model.status}"
        else:
            assert not model.frozen, f"a change of a batch that is {model.status}"
            assert model.closing is None, f"a change of a batch that is {model.status}"
            model.priority, model.concurrency = priority, concurrency

    def admin(self, tenant: str) -> Actor:
        return Actor(tenant, "emil", Role.ADMIN, alone=True)

    @when(lambda self: self.batches)
    def act_on_many(self, tenant: str, kind: BulkKind, priority: int) -> None:
        """An action on all batches of a tenant, which a worker does from the newest to the oldest."""
        admin = self.admin(tenant)
        value = priority if kind is BulkKind.PRIORITY else None
        action = self.run(bulk_actions.start(self.db, admin, kind, BatchFilter(), value))
        while self.run(bulk_actions.continue_one(RULES, self.db)):
            pass
        mine = [model for model in reversed(self.batches) if model.tenant == tenant]
        done = sum(self.acted(model, kind, priority) for model in mine)
        ended = self.run(bulk_actions.find(self.db, admin, action.id))
        assert (ended.done, ended.failed_count) == (done, len(mine) - done), ended.failed

    def acted(self, model: BatchModel, kind: BulkKind, priority: int) -> bool:
        match kind:
            case BulkKind.PAUSE:
                return self.closed(model, "pause")
            case BulkKind.CANCEL:
                # Once more concludes it, if its last holder has left meanwhile.
                if model.closing == "cancel":
                    self.concluded(model)
                    return True
                return self.closed(model, "cancel")
            case BulkKind.RESUME:
                return self.resumed(model)
            case BulkKind.RETRY:
                return model.ended and self.retried_all(model)
            case _:
                if model.frozen or model.closing is not None:
                    return False
                model.priority = priority
                return True

    @when(lambda self: any(batch.closing and not batch.frozen for batch in self.batches))
    def conclude(self, which: int) -> None:
        model = self.batch(which)
        done = self.run(batches.conclude(self.db, model.id))
        assert done == self.concluded(model), f"conclude of a batch that is {model.status}"

    def concluded(self, model: BatchModel) -> bool:
        mine = {id: span for id, span in self.spans.items() if span.batch is model}
        held = any(span.holder in self.live for span in mine.values())
        if model.closing is None or model.frozen or held:
            return False
        model.freeze()
        for span in mine.values():
            if span.task is None and span.holder is not None:
                span.interrupt()
            if span.submission is not None:
                self.lost |= {(span.lane.id, ordinal): span.submission for ordinal in span.ordinals}
            if span.task is not None:
                # The provider cancels the task, so the next try needs another attempt.
                self.retries.update((span.lane.id, ordinal) for ordinal in span.ordinals)
        self.forget(mine)
        self.unborn = [span for span in self.unborn if span.batch is not model]
        return True

    @when(lambda self: not any(batch.overdue for batch in self.batches))
    def deadline_passes(self, which: int) -> None:
        model = self.batch(which)
        self.run(builders.overrun(self.db, model.id))
        model.overdue = True

    # Claims

    @when(lambda self: any(span.holder is not None for span in self.spans.values()))
    def take_over(self, which: int, heir: int, forgotten: bool) -> None:
        """A worker is lost with something in hand, and another one takes whatever there is."""
        held = [span.holder for span in self.spans.values() if span.holder is not None]
        self.die(self.one_of(which, held), forgotten)
        self.claim(heir, 100, None, None, True)

    def claim(
        self, worker: int, limit: int, keys: tuple[str, ...] | None, which: int | None, read: bool
    ) -> None:
        scope = Scope(keys, None if which is None else self.batch(which).id)
        claims = self.run(spans.claim(self.db, self.workers[worker], scope, limit))
        self.check_fill(worker, limit, scope, claims)
        self.claimed(worker, scope, claims)
        self.hands[worker].unread += claims
        if read:
            self.fetch(worker)

    def check_fill(self, worker: int, limit: int, scope: Scope, claims: Sequence[Claim]) -> None:
        """No more than the limit, unless by a task, which is taken whole; and no less if there is more."""
        lanes = [lane for lane in self.lanes.values() if self.served(lane, scope) and lane.fresh]
        available = sum(self.bounded(lane, lane.fresh, scope) for lane in lanes)
        returned: Counter[int] = Counter()
        for id in self.claimable(scope, worker):
            returned[self.spans[id].lane.id] += len(self.spans[id].ordinals)
        available += sum(self.bounded(self.lanes[id], items, scope) for id, items in returned.items())
        got = sum(claim.size for claim in claims)
        if self.poisoned(scope, worker):
            # It gets a few of these, one by one, and asks again.
            available = 1
        largest_task = max((claim.size for claim in claims if claim.task_id), default=1)
        assert got < limit + largest_task, f"{got} items for a limit of {limit}"
        assert got >= min(limit, available), f"{got} of {available} items for a limit of {limit}"

    def poisoned(self, scope: Scope, worker: int) -> bool:
        """Whether there are lines that two workers were lost with."""
        return any(self.spans[id].one_by_one for id in self.claimable(scope, worker))

    def bounded(self, lane: LaneModel, items: int, scope: Scope) -> int:
        """How many lines of one kind a claim takes of a lane at most."""
        limit = lane.batch.concurrency
        return items if limit is None or scope.batch_id is not None else min(items, limit)

    def claimed(self, worker: int, scope: Scope, claims: Sequence[Claim]) -> None:
        """Check that everything that was claimed was free, and hand it over in the model."""
        free = self.claimable(scope, worker)
        in_order = not self.poisoned(scope, worker)
        seen = self.run(look(self.db)).spans
        fresh: list[LaneModel] = []
        returned: list[LaneModel] = []
        for claim in claims:
            ordinals = seen[claim.span_id]["ordinals"]
            lane = self.lanes[claim.lane_id]
            assert claim.size == len(ordinals)
            assert claim.key == lane.key
            if claim.span_id in self.spans:
                span = self.spans[claim.span_id]
                assert claim.span_id in free, "a span was taken that was not free"
                assert span.ordinals == ordinals, "a span changed when it was taken"
                free.remove(claim.span_id)
                returned.append(lane)
                if span.holder is not None:
                    span.take_from_the_dead()
                span.holder = worker
            elif min(ordinals) >= lane.next:
                assert self.served(lane, scope), "a lane was claimed that is shut, late or out of scope"
                assert ordinals == set(range(lane.next, lane.next + claim.size)), "the cursor has jumped"
                lane.next += claim.size
                fresh.append(lane)
                self.spans[claim.span_id] = SpanModel(lane, ordinals, holder=worker)
            else:
                (split,) = (
                    span for id in free if ordinals <= (span := self.spans[id]).ordinals and span.lane is lane
                )
                assert split.task is None, "a task was split"
                assert ordinals == set(sorted(split.ordinals)[: claim.size]), "a split takes the first ones"
                returned.append(lane)
                if split.holder is not None:
                    split.take_from_the_dead()
                self.spans[claim.span_id] = replace(split, ordinals=ordinals, holder=worker)
                split.ordinals -= ordinals
                split.holder, split.due = None, True
            span = self.spans[claim.span_id]
            assert (claim.attempt, claim.task_id) == (span.attempt, span.task)
            assert (claim.submission, claim.losses) == (span.submission, span.losses)
            if span.batch.piped and span.losses > 1 and span.task is None:
                assert claim.size == 1, "several lines that two workers were lost with came together"
        left = [self.spans[id].lane for id in free]
        pending = [lane for lane in self.lanes.values() if lane.fresh and self.served(lane, scope)]
        if scope.batch_id is None:
            left, pending = (
                [lane for lane in lanes if lane.batch.concurrency is None] for lanes in (left, pending)
            )
        if claims:
            self.live.add(worker)
        if not in_order:
            return
        for one, other in [(one, other) for one in fresh for other in left]:
            assert self.later(other, one), (
                "fresh lines were claimed before lines that had been claimed before"
            )
        for one, other in [(one, other) for one in [*fresh, *returned] for other in pending]:
            assert one.batch is other.batch or self.later(other, one), (
                "a batch with a later deadline came first"
            )

    def later(self, one: LaneModel, other: LaneModel) -> bool:
        """Of another tenant, or of a batch with a lower priority, or the same and a later deadline."""
        if one.batch.tenant != other.batch.tenant:
            return True
        return (-one.batch.priority, one.batch.deadline) > (-other.batch.priority, other.batch.deadline)

    @when(lambda self: any(hand.unread for hand in self.hands))
    def fetch(self, worker: int) -> None:
        hand = self.hands[worker]
        items = self.run(spans.fetch(self.db, self.workers[worker].id, hand.unread))
        expected = {
            (claim.span_id, ordinal, self.lanes[claim.lane_id].lines[ordinal])
            for claim in hand.unread
            if claim.span_id in self.spans and self.spans[claim.span_id].holder == worker
            for ordinal in self.spans[claim.span_id].ordinals
        }
        assert len(items) == len(expected)
        assert {(item.claim.span_id, item.ordinal, item.line_no) for item in items} == expected
        for item in items:
            key = self.lanes[item.claim.lane_id].keys.get(item.ordinal)
            body = b'{"line": %d}' % item.line_no if key is None else body_of(key)
            assert (item.custom_id.decode(), item.body) == (key or f"line-{item.line_no}", body)
        hand.unread.clear()
        hand.fresh += items

    def poll(self, keys: tuple[str, ...] | None, which: int | None) -> None:
        self.check_poll_result(Scope(keys, None if which is None else self.batch(which).id))

    def check_poll_result(self, scope: Scope) -> None:
        """What an idle worker is told is there is what it would get."""
        poll_result = self.run(spans.poll(self.db, self.workers[LAST].id, scope))
        pending = any(lane.fresh and self.served(lane, scope) for lane in self.lanes.values())
        assert poll_result.claimable == (pending or bool(self.claimable(scope))), f"a poll of {scope}"
        assert poll_result.finalizable == bool(self.finalizable(LAST, scope.batch_id)), f"a poll of {scope}"

    def served(self, lane: LaneModel, scope: Scope) -> bool:
        return (
            lane.batch.open
            and not lane.batch.overdue
            and (scope.keys is None or lane.key in scope.keys)
            and scope.batch_id in (None, lane.batch.id)
        )

    def claimable(self, scope: Scope, claimer: int | None = None) -> list[int]:
        """Spans that a claim may take. A worker whose lease has ended does not take its own: it renews it."""
        return [
            id
            for id, span in self.spans.items()
            if self.served(span.lane, scope)
            and (span.due if span.holder is None else span.holder not in {*self.live, claimer})
        ]

    # Answers

    @when(lambda self: any(hand.fresh for hand in self.hands))
    def settle(self, who: int, answers: list[tuple[int, str, float]]) -> None:
        worker = self.one_of(who, [n for n, hand in enumerate(self.hands) if hand.fresh])
        items = self.hands[worker].fresh
        self.answer(worker, [(self.one_of(n, items), kind, delay) for n, kind, delay in answers])

    @when(lambda self: any(hand.fresh for hand in self.hands))
    def settle_all_alike(self, who: int, kind: str, delay: float) -> None:
        """The upstream is down, or well again: one verdict for everything in hand."""
        worker = self.one_of(who, [n for n, hand in enumerate(self.hands) if hand.fresh])
        self.answer(worker, [(item, kind, delay) for item in self.hands[worker].fresh])

    @when(lambda self: self.robbed())
    def settle_too_late(self, who: int, answers: list[tuple[int, str, float]]) -> None:
        """A worker answers what was taken from it and is in another's hands, or free."""
        worker = self.one_of(who, sorted(self.robbed()))
        items = self.robbed()[worker]
        self.answer(worker, [(self.one_of(n, items), kind, delay) for n, kind, delay in answers])

    @when(lambda self: self.claimable(Scope()) or any(lane.fresh for lane in self.lanes.values()))
    def work_off(self, worker: int, limit: int) -> None:
        """Claim and complete, as on most days."""
        self.claim(worker, limit, None, None, True)
        self.answer(worker, [(item, "completed", 0.0) for item in self.hands[worker].fresh])

    @when(lambda self: any(hand.answered for hand in self.hands))
    def settle_once_more(self, who: int, answers: list[tuple[int, str, float]]) -> None:
        worker = self.one_of(who, [n for n, hand in enumerate(self.hands) if hand.answered])
        items = self.hands[worker].answered
        self.answer(worker, [(self.one_of(n, items), kind, delay) for n, kind, delay in answers])

    def robbed(self) -> dict[int, list[Item]]:
        """What workers think that they have, of spans that live on without them."""
        lost = {
            worker: [
                item
                for item in self.hands[worker].items()
                if (span := self.spans.get(item.claim.span_id)) and span.holder != worker
            ]
            for worker in WORKERS
        }
        return {worker: items for worker, items in lost.items() if items}

    def answer(self, worker: int, chosen: Sequence[tuple[Item, str, float]]) -> None:
        hand = self.hands[worker]
        verdicts = [
            self.emitting(verdict(item, kind, delay, n), n) for n, (item, kind, delay) in enumerate(chosen)
        ]
        settled = self.run(spans.settle(self.db, self.workers[worker].id, verdicts))
        expected = self.settled(worker, verdicts)
        assert {
            each.batch_id: (each.ended, each.finished, each.closing, each.step_ended) for each in settled
        } == expected
        for item, _, _ in chosen:
            if item in hand.fresh:
                hand.fresh.remove(item)
                hand.answered.append(item)

    def emitting(self, verdict: Verdict, nth: int) -> Verdict:
        """Completed items of a first stage emit none, one or two items."""
        if not isinstance(verdict, Completed) or verdict.item.claim.url != FIRST:
            return verdict
        keys = [self.new_key() for _ in range(nth % 3)]
        emitted = tuple(Emission(SECOND, key.encode(), body_of(key)) for key in keys)
        return msgspec.structs.replace(verdict, emitted=emitted)

    def settled(self, worker: int, verdicts: Sequence[Verdict]) -> dict[UUID, tuple[int, bool, bool, bool]]:
        touched: Counter[UUID] = Counter()
        refused = False
        again: dict[tuple[object, ...], SpanModel] = {}
        judged: set[tuple[int, int]] = set()
        # What the settle adds, and what it adds when it is sent again for those beside a late one.
        added: dict[tuple[bool, UUID], list[str]] = {}
        before = {id: (span.ordinals, span.attempt) for id, span in self.spans.items()}
        late = late_groups(verdicts, {id: ordinals for id, (ordinals, _) in before.items()})
        for each in verdicts:
            id, ordinal = each.item.claim.span_id, each.item.ordinal
            if (id, ordinal) in judged:
                continue
            judged.add((id, ordinal))
            if id not in before or ordinal not in before[id][0]:
                refused = True
                continue
            span, attempt = self.spans[id], before[id][1]
            ended = isinstance(each, Completed | Failed)
            if not ended and span.holder != worker:
                refused = True
                continue
            counters = span.batch.counters
            touched[span.batch.id] += ended
            if isinstance(each, Completed | Failed | Retried):
                # Also of attempts that failed; a retry takes nothing back.
                counters["input_tokens"] += each.usage.input_tokens
                counters["cached_tokens"] += each.usage.cached_tokens
                counters["output_tokens"] += each.usage.output_tokens
                counters["reasoning_tokens"] += each.usage.reasoning_tokens
            match each:
                case Completed():
                    self.results[span.lane.id, ordinal] = Outcome("completed", attempt, each.output.decode())
                    counters["completed"] += 1
                    if each.emitted:
                        keys = added.setdefault((alike(each) in late, span.batch.id), [])
                        keys += [emission.custom_id.decode() for emission in each.emitted]
                case Failed():
                    self.results[span.lane.id, ordinal] = Outcome("failed", attempt, each.output.decode())
                    counters["failed"] += 1
                case Retried() | Deferred():
                    failed = isinstance(each, Retried)
                    self.retries[span.lane.id, ordinal] += failed
                    # What is brought in a second time, because something beside it came too late, is apart.
                    submission = None if failed else span.submission
                    losses = 0 if failed else span.losses
                    kept = span.lane.id, attempt, span.before, submission, losses
                    new = again.setdefault(
                        (*kept, failed, each.delay, alike(each) in late),
                        SpanModel(span.lane, frozenset(), attempt + failed, span.before, due=each.delay == 0),
                    )
                    new.submission, new.losses = submission, losses
                    new.ordinals |= {ordinal}
            self.shrink(id, {ordinal})
        self.unborn += again.values()
        for (_, batch_id), keys in sorted(added.items(), key=lambda each: each[0][0]):
            self.fed(next(batch for batch in self.batches if batch.id == batch_id), SECOND, keys)
        outcome = {}
        for batch in self.batches:
            if batch.id in touched:
                closing = batch.closing is not None
                if batch.finished + batch.left_out == batch.total and not batch.accepting:
                    batch.freeze()
                # A settle of several batches leaves it to the caller.
                if not refused and len(touched) == 1:
                    self.concluded(batch)
                ended_step = touched[batch.id] > 0 and self.ended_step(batch)
                outcome[batch.id] = (touched[batch.id], batch.frozen, closing, ended_step)
        return outcome

    def ended_step(self, batch: BatchModel) -> bool:
        """Whether all lines that may run have ended. A sample is followed by a decision."""
        if batch.frozen or batch.closing is not None or batch.finished != batch.step_total:
            return False
        batch.next_step = True
        batch.paused = batch.paused or batch.step == 0
        return True

    @when(lambda self: any(hand.fresh for hand in self.hands))
    def park(self, who: int, which: int, some: set[int], delay: float) -> None:
        """A provider accepts some of the items of a span as a new task."""
        worker = self.one_of(who, [n for n, hand in enumerate(self.hands) if hand.fresh])
        self.park_some(worker, self.hands[worker].fresh, which, some, delay)

    @when(lambda self: self.robbed())
    def park_too_late(self, who: int, which: int, some: set[int], delay: float) -> None:
        """A provider accepts what was taken from the worker meanwhile."""
        worker = self.one_of(who, sorted(self.robbed()))
        self.park_some(worker, self.robbed()[worker], which, some, delay)

    def park_some(self, worker: int, items: Sequence[Item], which: int, some: set[int], delay: float) -> None:
        claim = self.one_of(which, items).claim
        ordinals = sorted({item.ordinal for item in items if item.claim.span_id == claim.span_id})
        self.tasks += 1
        task = f"task {self.tasks}"
        self.parked(worker, claim, {self.one_of(n, ordinals) for n in some}, task, delay)

    @when(lambda self: any(span.task and span.holder is None for span in self.spans.values()))
    def ask_for_a_task(self, worker: int, which: int, delay: float) -> None:
        """Tasks come due, a worker takes them, asks, and parks one of them again."""
        self.time_passes()
        self.claim(worker, 100, None, None, True)
        if any(span.task and span.holder is not None for span in self.spans.values()):
            self.park_a_task_again(which, delay)

    @when(lambda self: any(span.task and span.holder is not None for span in self.spans.values()))
    def park_a_task_again(self, which: int, delay: float) -> None:
        """A worker asked the provider: the task is still running."""
        held = [(id, span) for id, span in self.spans.items() if span.task and span.holder is not None]
        id, span = self.one_of(which, held)
        assert span.holder is not None
        assert span.task is not None
        items = self.hands[span.holder].items()
        claims = [item.claim for item in items if item.claim.span_id == id] or [
            claim for claim in self.hands[span.holder].unread if claim.span_id == id
        ]
        self.parked(span.holder, claims[0], set(span.ordinals), span.task, delay)

    def parked(self, worker: int, claim: Claim, ordinals: set[int], task: str, delay: float) -> None:
        parked = spans.ParkedTask(claim, tuple(sorted(ordinals)), "provider", task, delay)
        rows = self.run(spans.park(self.db, self.workers[worker].id, [parked]))
        moved = sum(size for _, size, *_ in rows)
        span = self.spans.get(claim.span_id)
        accepted = span.ordinals & ordinals if span and span.holder == worker else frozenset()
        assert moved == len(accepted)
        if span and accepted and span.task == task:
            self.spans[claim.span_id] = replace(span, holder=None, due=delay == 0)
        elif span and accepted:
            self.shrink(claim.span_id, accepted)
            self.unborn.append(
                SpanModel(span.lane, accepted, span.attempt, span.before, due=delay == 0, task=task)
            )

    @when(lambda self: any(span.task for span in self.spans.values()))
    def park_under_a_known_task(self, which: int, other: int) -> None:
        """One task id is known once: a second span with it is refused, and nothing has changed."""
        tasks = [span.task for span in self.spans.values() if span.task]
        held = [
            (worker, item)
            for worker in WORKERS
            for item in self.hands[worker].items()
            if (span := self.spans.get(item.claim.span_id))
            and span.holder == worker
            and span.task is None
            and item.ordinal in span.ordinals
        ]
        if not held:
            return
        worker, item = self.one_of(other, held)
        known = self.one_of(which, tasks)
        task = spans.ParkedTask(item.claim, (item.ordinal,), "provider", known, 0.0)
        with pytest.raises(psycopg.errors.UniqueViolation):
            self.run(spans.park(self.db, self.workers[worker].id, [task]))

    # Workers come and go

    @when(lambda self: any(span.holder is not None for span in self.spans.values()))
    def release(self, worker: int, some: set[int] | None) -> None:
        """Free all that the worker holds, or what it thinks it has of some spans."""
        known = [item.claim for item in self.hands[worker].items()] + self.hands[worker].unread
        ids = None if some is None else {self.one_of(n, known).span_id for n in some if known}
        concerned = self.run(spans.release(self.db, self.workers[worker].id, ids))
        freed = [
            span for id, span in self.spans.items() if span.holder == worker and (ids is None or id in ids)
        ]
        assert sorted(concerned) == sorted({span.batch.id for span in freed})
        for span in freed:
            span.interrupt()
            span.holder, span.due = None, True

    @when(lambda self: any(span.holder is not None for span in self.spans.values()))
    def release_unknown(self, worker: int, some: set[int]) -> None:
        """Free all that the worker holds but for some spans that it knows."""
        claims = [item.claim for item in self.hands[worker].items()] + self.hands[worker].unread
        known = {self.one_of(n, claims).span_id for n in some if claims}
        found = self.run(spans.unknown_spans(self.db, self.workers[worker].id, known))
        unknown_spans = {
            id: span for id, span in self.spans.items() if span.holder == worker and id not in known
        }
        assert found == unknown_spans.keys()
        self.run(spans.release(self.db, self.workers[worker].id, found, sent=False))
        for span in unknown_spans.values():
            span.holder, span.due = None, True

    @when(lambda self: self.live)
    def die(self, worker: int, forgotten: bool) -> None:
        """The lease is over; and if the worker holds nothing, the sweep may have removed its row."""
        self.run(builders.kill(self.db, self.workers[worker]))
        if forgotten:
            self.run(maintenance.forget_workers(self.db))
        self.live.discard(worker)

    @when(lambda self: any(span.holder is not None for span in self.spans.values()))
    def renew(self, worker: int) -> None:
        self.run(spans.renew(self.db, self.workers[worker]))
        self.live.add(worker)

    @when(lambda self: self.live)
    def leave(self, worker: int) -> None:
        self.run(spans.leave(self.db, self.workers[worker].id))
        if not any(span.holder == worker for span in self.spans.values()):
            self.live.discard(worker)

    @when(lambda self: any(not span.due for span in self.spans.values()))
    def time_passes(self) -> None:
        self.run(builders.pass_time(self.db))
        for span in self.spans.values():
            span.due = not span.held_back

    # The end of a batch

    @when(lambda self: any(batch.frozen and not batch.ended for batch in self.batches))
    def finalize(self, worker: int, which: int | None) -> None:
        """Nothing comes between, as on most days."""
        self.take_for_finalizing(worker, which)
        for n, batch in enumerate(self.batches):
            if batch.finalizer == worker:
                self.finish(worker, n)

    @when(lambda self: any(batch.frozen and not batch.ended for batch in self.batches))
    def take_for_finalizing(self, worker: int, which: int | None) -> None:
        scope = None if which is None else self.batch(which).id
        candidates = self.finalizable(worker, scope)
        taken = self.run(batches.claim_finalizing(self.db, self.workers[worker], scope))
        assert (taken is not None) == bool(candidates)
        if taken is not None:
            model = next(batch for batch in candidates if batch.id == taken.id)
            model.finalizer = worker
            self.live.add(worker)

    def finalizable(self, worker: int, batch_id: UUID | None) -> list[BatchModel]:
        """What nobody alive finalizes, and what the worker itself had and could not yield."""
        return [
            batch
            for batch in self.batches
            if batch.frozen
            and not batch.ended
            and batch.finalizer not in self.live - {worker}
            and batch_id in (None, batch.id)
        ]

    @when(lambda self: any(batch.finalizer is not None and not batch.ended for batch in self.batches))
    def finish(self, worker: int, which: int) -> None:
        """A worker that has uploaded the files commits, whether it is still the finalizer or not."""
        model = self.batch(which)
        ended = self.run(builders.finish(self.db, self.workers[worker], model.id))
        allowed = model.frozen and not model.ended and model.finalizer == worker
        assert (ended is not None) == allowed, "a batch was ended by a worker that is not its finalizer"
        if ended:
            model.ended = True
            self.winners[model.id] += 1

    @when(lambda self: any(batch.finalizer is not None and not batch.ended for batch in self.batches))
    def yield_finalizing(self, worker: int, which: int) -> None:
        model = self.batch(which)
        self.run(batches.yield_finalizing(self.db, self.workers[worker].id, model.id))
        if model.finalizer == worker and not model.ended:
            model.finalizer = None

    # Retries

    def end_and_retry(
        self, worker: int, which: int, limit: int, reason: Reason, only: frozenset[Unfinished] | None
    ) -> None:
        """Some lines fail, some are completed, and the batch ends before the others have run. Without steps
        that lead there, few lives come to a batch that has ended."""
        n, model = which % len(self.batches), self.batch(which)
        self.claim(worker, limit, None, n, True)
        kinds = itertools.cycle(("failed", "completed", "retry"))
        mine = [item for item in self.hands[worker].fresh if item.claim.batch_id == model.id]
        self.answer(worker, [(item, kind, 0.0) for item, kind in zip(mine, kinds, strict=False)])
        for each in WORKERS:
            self.release(each, None)
        self.all_is_well()
        self.close(n, reason)
        self.take_for_finalizing(worker, n)
        self.finish(worker, n)
        self.retry_lines(n, only)

    @when(lambda self: any(batch.ended for batch in self.batches))
    def retry_lines(self, which: int, only: frozenset[Unfinished] | None) -> None:
        model = self.batch(which)
        batch = self.run(builders.read(self.db, model.id))
        failed = {
            key: result
            for key, result in self.results.items()
            if self.lanes[key[0]].batch is model and result.kind == "failed"
        }
        ending = {None: None, "cancel": Unfinished.CANCELLED, "expire": Unfinished.EXPIRED}[model.closing]
        unrun = model.total - model.finished
        if only is not None and Unfinished.FAILED not in only:
            failed = {}
        runs_all = only is None or ending in only
        expected = len(failed) + (unrun if runs_all else 0) if model.ended else 0
        try:
            lines = self.run(retry(self.db, batch, RetrySelection(only)))
        except NotRetryable:
            lines = 0
        assert lines == expected, f"a retry of {only} of a batch that is {model.status}"
        if lines:
            self.retried(model, failed, unrun, runs_all)
            self.announced(model.id)

    def retried_all(self, model: BatchModel) -> bool:
        """As a retry of all lines, which an action has done."""
        failed = {
            key: result
            for key, result in self.results.items()
            if self.lanes[key[0]].batch is model and result.kind == "failed"
        }
        unrun = model.total - model.finished
        if not failed and not unrun:
            return False
        self.retried(model, failed, unrun, runs_all=True)
        return True

    def retried(
        self, model: BatchModel, failed: Mapping[tuple[int, int], Outcome], unrun: int, runs_all: bool
    ) -> None:
        """What is put back is in free spans of the next attempt, or is pending past the cursor."""
        finished = model.finished
        if runs_all:
            gone = [
                (lane.id, ordinal)
                for lane in self.lanes.values()
                if lane.batch is model
                for ordinal in range(lane.next)
                if (lane.id, ordinal) not in self.results
            ]
            self.put_back(gone, held_back=model.step_total is not None)
        elif unrun:
            model.left_out, model.left_out_as = unrun, model.closing
            for lane in self.lanes.values():
                if lane.batch is model:
                    lane.next = len(lane.lines)
        for key in failed:
            del self.results[key], self.engraved[key]
            self.retries[key] += 1
        self.put_back(failed)
        model.counters["failed"] -= len(failed)
        model.paused, model.closing, model.overdue = False, None, False
        model.frozen, model.finalizer, model.ended = False, None, False
        model.ends += 1
        model.deadline = (int(model.window == "24h"), self.moment)
        if model.step_total is not None:
            model.step_total = finished if runs_all and unrun else None
            model.next_step = model.step_total is not None and not failed
            self.begun(model)

    def put_back(self, keys: Iterable[tuple[int, int]], *, held_back: bool = False) -> None:
        made: dict[tuple[int, int, str | None], SpanModel] = {}
        for lane_id, ordinal in keys:
            attempt = 1 + self.retries[lane_id, ordinal]
            submission = self.lost.pop((lane_id, ordinal), None)
            new = SpanModel(
                self.lanes[lane_id],
                frozenset(),
                attempt,
                attempt - 1,
                due=not held_back,
                submission=submission,
                held_back=held_back,
            )
            made.setdefault((lane_id, attempt, submission), new).ordinals |= {ordinal}
        self.unborn += made.values()

    # What holds after every step

    @invariant()
    def all_is_well(self) -> None:
        if self.sound:
            return  # Nothing was done since we looked.
        seen = self.run(look(self.db))
        self.adopt(seen)
        check_partition(seen)
        self.check_finished_items(seen)
        self.check_model(seen)
        self.check_batches(seen)
        self.check_requests(seen)
        self.check_poll_result(Scope())
        self.sound = True

    def adopt(self, seen: Seen) -> None:
        """Give the spans that the model expects the ids that they were born with."""
        for id, row in seen.spans.items():
            if id not in self.spans:
                newborn = next((span for span in self.unborn if span.content() == self.content(row)), None)
                assert newborn is not None, f"nobody expected the span {row}"
                self.unborn.remove(newborn)
                self.spans[id] = newborn
        assert not self.unborn, f"expected and not found: {self.unborn}"

    def content(self, row: dict[str, Any]) -> tuple[object, ...]:
        ids = {str(worker.id): n for n, worker in enumerate(self.workers)}
        holder = None if row["worker_id"] is None else ids[row["worker_id"]]
        due = holder is None and row["due"]
        span = (row["lane_id"], row["ordinals"], row["attempt"], row["before"], holder, row["task_id"])
        return *span, row["submission"], row["losses"], due

    def check_finished_items(self, seen: Seen) -> None:
        """A finished item never changes: its row is the very row that was inserted."""
        for key, row in self.engraved.items():
            assert key in seen.results, f"the result of {key} is gone"
            assert seen.results[key]["row"] == row, f"the result of {key} has changed"
        self.engraved = {key: result["row"] for key, result in seen.results.items()}

    def check_model(self, seen: Seen) -> None:
        assert {id: self.content(row) for id, row in seen.spans.items()} == {
            id: span.content() for id, span in self.spans.items()
        }
        assert {
            key: Outcome(row["outcome"], row["attempt"], row["output"]) for key, row in seen.results.items()
        } == self.results
        for key, row in seen.results.items():
            assert row["line_no"] == self.lanes[key[0]].lines[key[1]], f"{key} has another line's number"
        assert seen.lanes.keys() == self.lanes.keys()
        for id, row in seen.lanes.items():
            lane = self.lanes[id]
            assert (row["next"], row["total"], row["open"], row["drained"]) == (
                lane.next,
                len(lane.lines),
                lane.batch.open,
                lane.pending == 0 or lane.batch.step_total is not None,
            )

    def check_batches(self, seen: Seen) -> None:
        for model in self.batches:
            batch = seen.batches[model.id]
            assert batch.status == model.status
            self.check_counts(model)
            assert (batch.finalizing_at is not None) == model.frozen
            assert (batch.ended_at is not None) == model.ended
            assert batch.reused == model.reused
            for name in COUNTERS:
                assert getattr(batch, name) == model.counters[name], f"{name} of batch {model.id}"
            assert not model.frozen or not any(span.batch is model for span in self.spans.values())
            assert (batch.step, batch.step_total) == (model.step, model.step_total)
            assert model.frozen or (batch.next_step_at is not None) == model.next_step
            left = model.total - model.finished - model.left_out
            assert model.frozen or model.accepting or left, "all is done and nobody will finalize it"
            assert batch.accepting == model.accepting

    def check_counts(self, model: BatchModel) -> None:
        """The counts of items by state are those of the model, and add up."""
        counts = self.run(builders.read(self.db, model.id)).counts
        states = Counter(
            self.state(lane, ordinal)
            for lane in self.lanes.values()
            if lane.batch is model
            for ordinal in range(len(lane.lines))
        )
        expected = Counter({COUNTED_AS.get(state, state): 0 for state in STATES})
        for state, items in states.items():
            expected[COUNTED_AS.get(state, state)] += items
        assert {name: getattr(counts, name) for name in expected} == expected
        assert counts.total == model.total == sum(expected.values())

    def state(self, lane: LaneModel, ordinal: int) -> str:
        """The state of an item, as the model has it (docs/reference/states.md)."""
        key = lane.id, ordinal
        if key in self.results:
            return self.results[key].kind
        spans = (each for each in self.spans.values() if each.lane is lane and ordinal in each.ordinals)
        span = next(spans, None)
        if span is None:
            closing = lane.batch.left_out_as or lane.batch.closing
            return {None: "pending", "cancel": "canceled", "expire": "expired"}[closing]
        if span.task is not None:
            return "processing"
        if span.holder is not None:
            return "claimed"
        return "pending" if span.due or span.held_back else "retrying"

    def check_requests(self, seen: Seen) -> None:
        """The view agrees."""
        for lane in self.lanes.values():
            for ordinal in range(len(lane.lines)):
                assert seen.requests[lane.id, ordinal] == self.state(lane, ordinal)

    # The end of the world

    def teardown(self) -> None:
        if self.sound:
            self.drive_to_the_end()
            for n in range(len(self.batches)):
                self.retry_lines(n, None)
            self.drive_to_the_end()
            outcomes = Counter(result.kind for result in self.results.values())
            assert outcomes == {"completed": sum(model.total for model in self.batches)}

    def drive_to_the_end(self) -> None:
        """Whatever state this is, one last worker brings every item and every batch to its end."""
        self.all_is_well()
        rival = WORKERS[0]
        for worker in WORKERS:
            self.die(worker, forgotten=False)
        for n, model in enumerate(self.batches):
            self.resume(n)
            if model.piped:
                self.release_items(sum(batch.piped for batch in self.batches[:n]))
            if model.overdue:
                self.close(n, "expire")
            self.conclude(n)
        # A resume may have begun a step, whose spans have no ids in the model before this.
        self.all_is_well()
        self.time_passes()
        while True:
            self.claim(LAST, 5, None, None, True)
            if not self.hands[LAST].fresh and not self.go_on():
                break
            self.answer(LAST, [(item, "completed", 0.0) for item in self.hands[LAST].fresh])
            self.all_is_well()
        self.all_is_well()
        assert not self.spans, "these items are with nobody who would finish them"
        for n, model in enumerate(self.batches):
            # The first finalizer is lost while it uploads; its commit comes after the second has taken over.
            for worker in (rival, LAST):
                self.take_for_finalizing(worker, n)
                self.die(rival, forgotten=False)
            for worker in (rival, LAST, rival):
                self.finish(worker, n)
            assert model.ended, f"batch {model.id} is stuck: {model.status}"
        self.all_is_well()
        assert self.winners == {model.id: model.ends for model in self.batches}, "one finalizer wins each end"
        self.check_outcomes()
        report = self.run(doctor.examine(self.db))
        assert report.findings == (), "the doctor sees what we do not"

    def go_on(self) -> bool:
        """Begin the next steps, and go on after samples."""
        for n in range(len(self.batches)):
            self.resume(n)
            self.begin_step(n)
        self.all_is_well()
        return bool(self.claimable(Scope())) or any(
            lane.fresh and self.served(lane, Scope()) for lane in self.lanes.values()
        )

    def check_outcomes(self) -> None:
        """Every line of every batch has exactly one outcome, and an attempt for each time it was tried."""
        rows = self.run(sql(self.db, "SELECT lane_id, ordinal, state, attempt FROM batchline.requests"))
        assert len(rows) == sum(model.total for model in self.batches)
        ends = {"cancel": {"canceled"}, "expire": {"expired"}, None: set[str]()}
        for lane_id, ordinal, state, attempt in rows:
            closing = self.lanes[lane_id].batch.closing
            assert state in {"completed", "failed"} | ends[closing], f"{lane_id}/{ordinal} ended as {state}"
            if state in ("completed", "failed"):
                reused = self.results[lane_id, ordinal].attempt == 0
                assert attempt == (0 if reused else 1 + self.retries[lane_id, ordinal])
        history = self.run(sql(self.db, "SELECT lane_id, ordinal FROM batchline.retry_attempts"))
        assert Counter(history) == +self.retries

    # Small change

    @staticmethod
    def one_of(which: int, choices: Sequence[T]) -> T:
        return choices[which % len(choices)]

    def batch(self, which: int) -> BatchModel:
        return self.one_of(which, self.batches)

    def shrink(self, id: int, ordinals: Iterable[int]) -> None:
        span = self.spans[id]
        span.ordinals -= frozenset(ordinals)
        if not span.ordinals:
            self.forget([id])

    def forget(self, ids: Iterable[int]) -> None:
        for id in list(ids):
            del self.spans[id]


def check_partition(seen: Seen) -> None:
    """The invariant: [0, next) of a lane is its results and what its spans hold; no item is in two hands."""
    for id, lane in seen.lanes.items():
        done = [ordinal for lane_id, ordinal in seen.results if lane_id == id]
        held = [n for span in seen.spans.values() if span["lane_id"] == id for n in span["ordinals"]]
        everything, handed_out = set(done + held), set(range(lane["next"]))
        assert len(everything) == len(done) + len(held), f"lane {id}: {done} are done, and held are {held}"
        if lane["frozen"]:
            assert not held, f"lane {id} is frozen, and held are {held}"
            assert everything <= handed_out, f"lane {id} has results beyond its cursor"
        elif lane["left_out"] == 0:
            assert everything == handed_out, f"lane {id} has lost {handed_out - everything}"
    for batch_id in {lane["batch_id"] for lane in seen.lanes.values() if lane["left_out"]}:
        lanes = {id: lane for id, lane in seen.lanes.items() if lane["batch_id"] == batch_id}
        results = sum(lane_id in lanes for lane_id, _ in seen.results)
        held = [n for span in seen.spans.values() if span["lane_id"] in lanes for n in span["ordinals"]]
        left = sum(lane["next"] for lane in lanes.values()) - results - len(held)
        assert {left} == {lane["left_out"] for lane in lanes.values()}, f"batch {batch_id} has lost lines"


def body_of(key: str) -> bytes:
    """The body of an item that came while its batch ran."""
    return b'{"key": "%b"}' % key.encode()


def verdict(item: Item, kind: str, delay: float, nth: int) -> Verdict:
    """A verdict that tells itself from all others."""
    text = f"{kind} {nth} of attempt {item.claim.attempt} by span {item.claim.span_id}"
    custom_id = item.custom_id.decode()
    output = f'{{"id":"{item.request_id}","custom_id":"{custom_id}","response":"{text}"}}'.encode()
    match kind:
        case "completed":
            return Completed(item, 200, output, Usage(nth, nth + 1, nth + 2, nth + 3))
        case "failed":
            return Failed(item, output, 400, Usage(nth, 0, 1, 0))
        case "retry":
            return Retried(item, "rate_limit", "slow down", delay, Usage(nth + 1, 0, 2, 0))
        case _:
            return Deferred(item, delay)


# Longer than the others: Hypothesis takes up to five minutes to make a failure short.
@pytest.mark.timeout(900)
def test_every_life_of_every_item_keeps_the_invariant(database_url: str) -> None:
    number = int(os.environ.get("BATCHLINE_TEST_SEED") or random.getrandbits(32))
    with asyncio.Runner() as runner, psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN batchline")
        LifeOfItems.runner = runner
        LifeOfItems.listener = listener
        LifeOfItems.db = Session(database_url, "state machine")
        try:
            run_state_machine_as_test(cast(Any, seed(number)(LifeOfItems)), settings=SETTINGS)
        except BaseException as error:
            error.add_note(
                f"Rerun: BATCHLINE_TEST_SEED={number} python -m pytest tests/store/test_state_machine.py"
            )
            raise
        finally:
            runner.run(LifeOfItems.db.close())
