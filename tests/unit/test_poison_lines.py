"""One line of 100,000 kills its upstream whenever it arrives. It is found within a few crashes, and all
others are answered. Time is modelled; the decisions are those of a worker."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from msgspec.structs import replace

from batchline.config.settings import WorkerSettings
from batchline.executors.crash_verdict import crashed
from batchline.model import Claim, Deferred, Failed, Item, RunSettings, Verdict
from batchline.upstreams.crashes import Fate, Reach
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.quarantine import ALONE_FROM
from batchline.upstreams.retry import Backoff
from batchline.upstreams.timing import Timing
from batchline.upstreams.upstream import Upstream
from batchline.worker.buffer import Buffer
from batchline.worker.rate import Rate
from batchline.worker.slots import Slots
from batchline.worker.suspects import Suspects
from tests.support.virtual_time import VirtualTimeLoop

RESTART = 5.0
MAX_SECONDS = 4 * 3600.0
CLAIM = Claim(1, 1, UUID(int=1), 1, None, 1, "/v1/chat/completions", "m", "m", 1000.0, RunSettings())


class ModelledServer:
    """Dies when one of the killers arrives, with all that is in flight, and is back after some seconds."""

    def __init__(self, killers: Sequence[int], latency: float) -> None:
        self._killers = frozenset(killers)
        self._latency = latency
        self._dice = random.Random(7)
        self._clock = asyncio.get_running_loop().time
        self._back_at = 0.0
        self._ends: dict[int, asyncio.Future[None]] = {}
        self.deaths = 0

    @property
    def down(self) -> bool:
        return self._clock() < self._back_at

    def die(self) -> None:
        self.deaths += 1
        self._back_at = self._clock() + RESTART
        for end in self._ends.values():
            if not end.done():
                end.set_exception(ConnectionResetError())

    async def serve(self, item: Item) -> None:
        if self.down:
            raise ConnectionRefusedError
        end = self._ends[item.line_no] = asyncio.get_running_loop().create_future()
        try:
            if item.line_no in self._killers:
                asyncio.get_running_loop().call_later(0.01, self.die)
            else:
                seconds = self._latency * self._dice.uniform(0.5, 1.5)
                asyncio.get_running_loop().call_later(seconds, _finish, end)
            await end
        finally:
            del self._ends[item.line_no]


class ModelledUpstream(Upstream):
    """The server as one worker sees it."""

    def __init__(self, server: ModelledServer) -> None:
        clock = asyncio.get_running_loop().time
        super().__init__("model", 64, asyncio.Event(), Timing(clock=clock), Backoff(0.5, 30.0))
        self._server = server

    async def probe(self) -> Reach:
        return Reach.UNREACHABLE if self._server.down else Reach.PRESENT

    async def run(self, item: Item) -> Verdict | None:
        """As the executor does; None: it was answered."""
        if (self.limited or item.claim.crashes) and not await self.may_send(lambda: "me", item):
            return Deferred(item, self.rest_of(item))
        started = self.begin(item)
        try:
            await self._server.serve(item)
            self.answered(started)
            return None
        except ConnectionRefusedError:
            return Deferred(item, self.unreached(started, "refused"))
        except ConnectionResetError:
            fate = await self.fate(item, started, None)
            assert fate is Fate.CRASHED, "no connection is lost otherwise"
            return crashed(item, max(self.rest, 0.5))
        finally:
            self.end(item)


def _finish(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


@dataclass
class ModelledBatch:
    """What a database would know."""

    server: ModelledServer
    lines: int
    waiting: deque[Item] = field(default_factory=deque)
    held: dict[int, Item] = field(default_factory=dict)
    answered: Counter[int] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    max_suspects: int = 0

    def __post_init__(self) -> None:
        self.waiting.extend(Item(CLAIM, n - 1, n, b"", b"{}") for n in range(1, self.lines + 1))

    @property
    def ended(self) -> bool:
        return len(self.answered) + len(self.failed) == self.lines

    def settle(self, item: Item, verdict: Verdict | None) -> None:
        match verdict:
            case None:
                self.answered[item.line_no] += 1
            case Failed():
                self.failed.append(item.line_no)
            case Deferred():
                claim = replace(item.claim, crashes=item.claim.crashes + verdict.crashed)
                again = replace(item, claim=claim)
                asyncio.get_running_loop().call_later(verdict.delay, self.waiting.append, again)


class ModelledWorker:
    def __init__(self, batch: ModelledBatch, concurrency: int, others: list["ModelledWorker"]) -> None:
        self._batch = batch
        self._concurrency = concurrency
        self._others = others
        self._upstream = ModelledUpstream(batch.server)
        self._upstream.quarantine.is_ours = self._is_alone
        self._slots = Slots(InFlightLimit(concurrency))
        self._suspects = Suspects(self._upstream.quarantine, lambda back: self._settle(back.item, back))
        clock = asyncio.get_running_loop().time
        self._buffer = Buffer(
            *(WorkerSettings(), Rate(clock), self._slots, BodyMemory(2**30), 2**30), suspects=self._suspects
        )
        self._held: dict[int, Item] = {}

    @property
    def holds_suspects(self) -> bool:
        return any(item.claim.crashes >= ALONE_FROM for item in self._held.values())

    async def _is_alone(self) -> bool:
        return not any(other.holds_suspects for other in self._others if other is not self)

    def _settle(self, item: Item, verdict: Verdict | None) -> None:
        del self._held[item.line_no]
        self._batch.settle(item, verdict)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._claim())
                for _ in range(self._concurrency):
                    tasks.create_task(self._send())
        finally:
            assert self._upstream.view().suspects == 0, "all have left"
            await self._upstream.close()

    async def _send(self) -> None:
        running = self._slots.running
        while (item := await self._buffer.take()) is not None:
            running[id(item)] = item
            suspects = sum(each.claim.crashes > 0 for each in running.values())
            self._batch.max_suspects = max(self._batch.max_suspects, suspects)
            assert self._upstream.quarantine.suspects >= suspects
            verdict = await self._upstream.run(item)
            del running[id(item)]
            self._buffer.done(item)
            self._settle(item, verdict)

    async def _claim(self) -> None:
        waiting = self._batch.waiting
        while not self._batch.ended:
            wanted = self._concurrency + 8 - len(self._buffer) + len(self._suspects.waiting)
            claimed = [waiting.popleft() for _ in range(min(len(waiting), wanted))]
            self._held.update((item.line_no, item) for item in claimed)
            self._buffer.put(claimed)
            await asyncio.sleep(0.05)
        self._buffer.close()


async def run_to_the_end(
    server: ModelledServer, lines: int, concurrency: int, workers: int = 1
) -> ModelledBatch:
    """Fails after some hours of modelled time: then lines wait for each other for ever."""
    batch, all_workers = ModelledBatch(server, lines), list[ModelledWorker]()
    for _ in range(workers):
        all_workers.append(ModelledWorker(batch, concurrency, all_workers))
    async with asyncio.timeout(MAX_SECONDS), asyncio.TaskGroup() as tasks:
        for worker in all_workers:
            tasks.create_task(worker.run())
    return batch


def modelled(
    killers: Sequence[int],
    lines: int,
    concurrency: int,
    latency: float = 0.2,
    workers: int = 1,
    seed: int = 0,
) -> ModelledBatch:
    # Of the delays of lines that are given back.
    random.seed(seed)

    async def run() -> ModelledBatch:
        return await run_to_the_end(ModelledServer(killers, latency), lines, concurrency, workers)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def test_one_killer_of_100_000_lines_is_found_within_20_crashes_and_all_others_complete() -> None:
    batch = modelled([50_000], 100_000, 64)
    assert batch.failed == [50_000]
    assert len(batch.answered) == 99_999
    assert set(batch.answered.values()) == {1}
    assert batch.server.deaths <= 20


@pytest.mark.parametrize("concurrency", [1, 2, 8, 200])
def test_it_is_found_at_any_concurrency(concurrency: int) -> None:
    batch = modelled([300], 1_000, concurrency)
    assert batch.failed == [300]
    assert len(batch.answered) == 999
    assert batch.server.deaths == 4, "two among others, and two alone"
    assert batch.max_suspects <= 8 + 1


def test_several_killers_are_found() -> None:
    batch = modelled([10, 11, 400, 900], 1_000, 32)
    assert sorted(batch.failed) == [10, 11, 400, 900]
    assert len(batch.answered) == 996
    assert batch.server.deaths <= 4 * 4


@pytest.mark.parametrize("lines", [3, 60])
def test_a_killer_of_one_worker_fails_no_line_of_another(lines: int) -> None:
    """Also if each worker has one line at a time, which takes long, so that the same lines meet again."""
    batch = modelled([1], lines, 1, 30.0, workers=3)
    assert batch.failed == [1]
    assert len(batch.answered) == lines - 1


# Delays with which lines of others would fail, if workers did not look at each other, and one without.
SEEDS = (8, 9, 10)


def failed_by_others(seed: int) -> set[int]:
    """With three killers and as many workers as lines, which take long: each killer meets all others again,
    unless its worker waits until no other worker runs a line alone."""
    batch = modelled([1, 2, 3], 10, 1, 60.0, workers=10, seed=seed)
    assert len(batch.answered) + len(batch.failed) == 10
    assert set(batch.failed) >= {1, 2, 3}
    assert batch.server.deaths <= 3 * 4
    return set(batch.failed) - {1, 2, 3}


def test_killers_of_several_workers_fail_no_line_of_another() -> None:
    assert not any(failed_by_others(seed) for seed in SEEDS)


def test_they_would_if_workers_did_not_look_at_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above proves that they do."""

    async def always(self: ModelledWorker) -> bool:
        return True

    monkeypatch.setattr(ModelledWorker, "_is_alone", always)
    assert any(failed_by_others(seed) for seed in SEEDS)


def test_an_upstream_that_restarts_now_and_then_fails_nobody() -> None:
    async def run() -> ModelledBatch:
        server = ModelledServer([], 0.2)

        async def restarts() -> None:
            for _ in range(5):
                await asyncio.sleep(12.0)
                server.die()

        restarting = asyncio.create_task(restarts())
        try:
            return await run_to_the_end(server, 5_000, 16)
        finally:
            restarting.cancel()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        batch = runner.run(run())
    assert (batch.failed, len(batch.answered)) == ([], 5_000)
    assert batch.server.deaths == 5
