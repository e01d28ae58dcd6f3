"""Slots belong to an upstream, however it became known: one that refuses everything, or hangs, takes none of
another's."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from batchline.config.settings import WorkerSettings
from batchline.files.objects import Objects
from batchline.model import Batch, Item, Verdict
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.worker.producer import ProducerScope
from batchline.worker.producers import Discovery
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, a_worker, read, sql, take, until
from tests.support.executors import Answering
from tests.support.processes import batchline, simulated, working, write_requests
from tests.support.serving import serving
from tests.support.waiting import wait_for

UPSTREAMS = ("http://", "https://")


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def submit(inputs: Path, url: str, location: tuple[str, ...], *options: str) -> None:
    done = batchline("submit", str(inputs), "--upstream", url, *options, *location)
    assert done.returncode == 0, done.stderr


@pytest.mark.attack
@pytest.mark.parametrize(
    ("bad", "requests"),
    [
        # The pace drops at once, so that 64 requests may take minutes.
        pytest.param(("--refuse-rate", "1"), 5, id="always answers 429"),
        pytest.param(("--latency", "20000"), 64, id="takes 20 s"),
    ],
)
def test_a_healthy_upstream_is_not_affected_by_a_bad_one(
    tmp_path: Path, location: tuple[str, ...], database_url: str, bad: tuple[str, ...], requests: int
) -> None:
    """The bad one's batch comes first, and has enough lines to fill 64 slots for minutes."""
    many, some = (write_requests(tmp_path / f"{count}.jsonl", count) for count in (1_200, 300))
    with (
        simulated(*bad) as ill,
        simulated("--latency", "5") as well,
        working(database_url, tmp_path / "data", "--concurrency", "64"),
    ):
        submit(many, ill.url, location, "--max-attempts", "100")
        wait_for("requests to the bad upstream", lambda: ill.stats()["requests"] >= requests)
        submit(some, well.url, location)
        wait_for("the healthy batch", lambda: well.stats()["executed"] == 300)


class Holding(Answering):
    """Answers at once, but for items of some upstreams: those wait until told."""

    def __init__(self, *held: str) -> None:
        super().__init__()
        self.held = held
        self.go_on = asyncio.Event()
        self.in_flight: Counter[str] = Counter()
        self.maximum: Counter[str] = Counter()
        # At all upstreams together.
        self.highest = 0
        self.ended: set[UUID] = set()
        self.changed = asyncio.Event()

    async def run(self, item: Item) -> Verdict:
        key = item.claim.key
        self.in_flight[key] += 1
        self.highest = max(self.highest, self.in_flight.total())
        self.maximum[key] = max(self.maximum[key], self.in_flight[key])
        self.changed.set()
        if key in self.held:
            await self.go_on.wait()
        await asyncio.sleep(0)
        self.in_flight[key] -= 1
        return await super().run(item)

    def on_ended(self, batch: Batch) -> None:
        self.ended.add(batch.id)
        self.changed.set()

    async def until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            self.changed.clear()
            await self.changed.wait()


def a_worker_for_any_upstream(
    url: str, executor: Holding, folder: Path, settings: WorkerSettings, *, at_once: int = 5
) -> Worker:
    return Worker(
        url,
        executor,
        Objects.at(folder / "objects"),
        settings,
        Scope(),
        WorkerOptions(
            producers=[ProducerScope(Scope(excluded_prefixes=UPSTREAMS), at_once)],
            discovered=[Discovery(Scope(below=UPSTREAMS), at_once)],
            on_ended=executor.on_ended,
        ),
    )


async def test_each_upstream_has_its_own_slots_and_models_have_theirs(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    stuck = ("http://stuck-1", "https://stuck-2")
    executor = Holding(*stuck, "model")
    settings = WorkerSettings(drain=True, lease=30.0, poll_min=0.05)
    worker = a_worker_for_any_upstream(database_url, executor, tmp_path, settings)
    bad = [await a_batch(db, {"m": 50}, upstream=url) for url in stuck]
    bad.append(await a_batch(db, {"model": 50}, upstream=None))
    good = [await a_batch(db, {"m": 80, "n": 80}, upstream=f"http://good-{n}") for n in range(4)]
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until(lambda: executor.ended == {batch.id for batch in good})
        assert [(await read(db, batch)).completed for batch in bad] == [0, 0, 0]
        executor.go_on.set()
    assert [(await read(db, batch)).completed for batch in bad] == [50] * 3
    assert await sql(db, "SELECT count(*) FROM batchline.spans") == [(0,)]
    assert worker.claimed == 150 + 4 * 160
    assert len(worker.producers) == 1, "producers of upstreams without work are closed"
    assert executor.maximum.keys() == {*stuck, "model", *(f"http://good-{n}" for n in range(4))}
    assert set(executor.maximum.values()) == {5}, "each uses all of its slots, and no more"


async def test_an_upstream_that_was_left_is_found_again(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    executor = Holding()
    worker = a_worker_for_any_upstream(database_url, executor, tmp_path, WorkerSettings(lease=30.0))
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        for _ in range(20):
            batch = await a_batch(db, {"m": 3}, upstream="http://one")
            await executor.until(partial(executor.ended.__contains__, batch.id))
        worker.stop()
    assert len(executor.sent) == 60


async def test_what_is_in_flight_at_many_upstreams_is_finished_when_the_worker_stops(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    urls = [f"http://{n}" for n in range(10)]
    executor = Holding(*urls)
    worker = a_worker_for_any_upstream(database_url, executor, tmp_path, WorkerSettings(lease=30.0))
    for url in urls:
        await a_batch(db, {"m": 20}, upstream=url)
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        await executor.until(lambda: sum(executor.in_flight.values()) == 50)
        worker.stop()
        executor.go_on.set()
    assert await sql(db, "SELECT count(*) FROM batchline.results") == [(50,)]
    assert await sql(db, "SELECT count(*) FROM batchline.spans WHERE worker_id IS NOT NULL") == [(0,)]
    assert len(executor.sent) == 50


async def test_an_upstream_that_is_known_in_two_ways_has_its_slots_once(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    """It serves all models, and batches name its URL, in two spellings."""
    named = ("http://one/v1", "HTTP://ONE:80/v1/")
    executor = Holding("model", *named)
    worker = Worker(
        database_url,
        executor,
        Objects.at(tmp_path / "objects"),
        WorkerSettings(lease=30.0, poll_min=0.05),
        Scope(),
        WorkerOptions(
            producers=[ProducerScope(Scope(excluded_prefixes=UPSTREAMS), 5, "http://one/v1/")],
            discovered=[Discovery(Scope(below=(*UPSTREAMS, "HTTP://")), 50)],
            on_ended=executor.on_ended,
        ),
    )
    batches = [await a_batch(db, {"model": 20}, upstream=None)]
    batches += [await a_batch(db, {"m": 20}, upstream=url) for url in named]

    async def all_hold_some() -> bool:
        return [each.in_flight > 0 for each in worker.producers.dispatchers] == [True] * 3

    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run())
        # All three producers have claimed what they may hold.
        await until(all_hold_some)
        assert sum(executor.in_flight.values()) == 5
        executor.go_on.set()
        await executor.until(lambda: executor.ended == {batch.id for batch in batches})
        worker.stop()
    assert executor.highest == 5
    assert len(executor.sent) == 60


async def test_a_scope_of_keys_that_begin_so_takes_no_others(db: Session) -> None:
    await a_batch(db, {"model": 3, "httpd": 3}, upstream=None)
    await a_batch(db, {"model": 3}, upstream="http://a")
    await a_batch(db, {"model": 3}, upstream="https://b")
    named = Scope(below=UPSTREAMS, excluded=("http://a",))
    assert {item.claim.key for item in await take(db, a_worker(), 50, named)} == {"https://b"}
    # What was given up is taken over by the same rule.
    await take(db, a_worker("dead", lease=-1.0), 50, Scope())
    assert {item.claim.key for item in await take(db, a_worker(), 50, named)} == set()
    found = await take(db, a_worker(), 50, Scope(below=UPSTREAMS))
    assert {item.claim.key for item in found} == {"http://a"}
    rest = await take(db, a_worker(), 50, Scope(excluded_prefixes=UPSTREAMS))
    assert {item.claim.key for item in rest} == {"model", "httpd"}


def test_a_model_cannot_pass_for_an_upstream(database_url: str, tmp_path: Path) -> None:
    """By its name it would be given slots of its own, beside those of the upstream that serves it."""
    inputs = write_requests(tmp_path / "in.jsonl", 2, models=("small", "https://slots.example"))
    with serving(database_url, tmp_path) as server:
        client = server.client()
        file = client.files.create(file=inputs, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(error.code, error.line) for error in batch.errors.data] == [("model_not_found", 2)]
