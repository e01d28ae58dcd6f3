"""Upstreams with a hidden capacity in a time of their own, and workers that always have more to send.

No asyncio and no clock: an hour takes a second. All chance comes from a seed, so figures can be asserted.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Protocol

from batchline.upstreams.concurrency_controller import ConcurrencyController


class Beyond(Enum):
    """What happens to requests that find neither a slot nor a place in the queue."""

    REFUSED_AT_ONCE = auto()
    REFUSED_AFTER_WORK = auto()


class Sender(Protocol):
    """Decides how many requests are in flight."""

    @property
    def value(self) -> int: ...

    @property
    def round(self) -> int: ...

    def answered(self, now: float, seconds: float, in_flight: int, sent_in: int, tokens: int = 0) -> None: ...

    def refused(self, now: float, sent_in: int) -> None: ...


@dataclass
class FixedConcurrency:
    value: int
    round: int = 0

    def answered(self, now: float, seconds: float, in_flight: int, sent_in: int, tokens: int = 0) -> None: ...

    def refused(self, now: float, sent_in: int) -> None: ...


@dataclass(frozen=True)
class Server:
    """`queue`: how many requests wait at most; None: any number. `noise` is the standard deviation of the
    time for a request, as a share of it. `by_length`: it depends on the length of the answer. `steps` are
    times and capacities. `errors` is the share that is refused whatever is in flight."""

    capacity: int
    seconds: float
    queue: int | None = None
    beyond: Beyond = Beyond.REFUSED_AT_ONCE
    noise: float = 0.0
    by_length: bool = False
    steps: tuple[tuple[float, int], ...] = ()
    errors: float = 0.0


@dataclass
class _Client:
    sender: Sender
    number: int
    in_flight: int = 0


@dataclass(frozen=True)
class _Request:
    client: _Client
    at: float
    sent_in: int
    work: float
    tokens: int


@dataclass(frozen=True)
class Answered:
    at: float
    seconds: float
    client: int
    # In slot-seconds, so that long answers count more.
    work: float


@dataclass(frozen=True)
class Figures:
    # Slot-seconds of work per second: at most the capacity.
    goodput: float
    p99: float
    refused: float
    # Answers of the client that has most, divided by those of the one that has fewest.
    share: float


@dataclass
class ModelledUpstream:
    server: Server
    seed: int = 1
    now: float = 0.0
    answers: list[Answered] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)
    _clients: list[_Client] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _queue: deque[_Request] = field(default_factory=deque)
    _number: Callable[[], int] = field(default_factory=lambda: count().__next__)
    _busy: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._capacity = self.server.capacity
        for at, capacity in self.server.steps:
            self._at(at, lambda capacity=capacity: self._step(capacity))  # type: ignore[misc]

    def join(self, sender: Sender, at: float = 0.0) -> None:
        client = _Client(sender, len(self._clients))
        self._clients.append(client)
        self._at(at, lambda: self._fill(client))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def figures(self, since: float, until: float) -> Figures:
        within = [each for each in self.answers if since <= each.at < until]
        refusals = sum(since <= at < until for at in self.refusals)
        latencies = sorted(each.seconds for each in within)
        counts = [sum(each.client == client.number for each in within) for client in self._clients]
        return Figures(
            goodput=sum(each.work for each in within) / (until - since),
            p99=latencies[int(0.99 * len(latencies))] if latencies else math.inf,
            refused=refusals / max(1, refusals + len(within)),
            share=max(counts) / max(1, min(counts)),
        )

    def _at(self, at: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at, self._number(), event))

    def _step(self, capacity: int) -> None:
        self._capacity = capacity
        self._start_waiting()

    def _fill(self, client: _Client) -> None:
        while client.in_flight < client.sender.value:
            client.in_flight += 1
            self._receive(_Request(client, self.now, client.sender.round, *self._work()))

    def _work(self) -> tuple[float, int]:
        server, tokens = self.server, 0
        seconds = server.seconds
        if server.by_length:
            tokens = max(1, int(self._random.lognormvariate(0.0, 0.8) * 100))
            # 137 is the mean.
            seconds *= 0.2 + 0.8 * tokens / 137
        if server.noise:
            sigma = math.sqrt(math.log(1 + server.noise**2))
            seconds *= self._random.lognormvariate(-sigma * sigma / 2, sigma)
        return seconds, tokens

    def _receive(self, request: _Request) -> None:
        server = self.server
        if server.errors and self._random.random() < server.errors:
            self._refuse(request, 0.01)
        elif self._busy < self._capacity:
            self._start(request)
        elif server.queue is None or len(self._queue) < server.queue:
            self._queue.append(request)
        elif server.beyond is Beyond.REFUSED_AT_ONCE:
            self._refuse(request, 0.01)
        else:
            self._refuse(request, server.seconds)

    def _start(self, request: _Request) -> None:
        self._busy += 1
        self._at(self.now + request.work, lambda: self._finish(request))

    def _finish(self, request: _Request) -> None:
        self._busy -= 1
        self._start_waiting()
        client, seconds = request.client, self.now - request.at
        self.answers.append(Answered(self.now, seconds, client.number, request.work))
        client.sender.answered(self.now, seconds, client.in_flight, request.sent_in, request.tokens)
        self._end(client)

    def _start_waiting(self) -> None:
        while self._queue and self._busy < self._capacity:
            self._start(self._queue.popleft())

    def _refuse(self, request: _Request, after: float) -> None:
        def end() -> None:
            self.refusals.append(self.now)
            request.client.sender.refused(self.now, request.sent_in)
            self._end(request.client)

        self._at(self.now + after, end)

    def _end(self, client: _Client) -> None:
        client.in_flight -= 1
        self._fill(client)


def adaptive(
    server: Server, until: float, seed: int = 1, joins: Sequence[float] = (0.0,)
) -> ModelledUpstream:
    """A run with one controller for each time in `joins`."""
    upstream = ModelledUpstream(server, seed)
    for at in joins:
        # Any offset: only all workers must have the same one.
        upstream.join(ConcurrencyController(1000, lambda: upstream.now + 0.37), at)
    upstream.run(until)
    return upstream


def best_fixed(server: Server) -> Figures:
    """The figures of the lowest concurrency with about the best goodput, found by trying many. A fixed one
    needs no time to settle, so a short run tells."""
    top, since = server.capacity, 10 * server.seconds
    factors = (0.5, 0.9, 1.0) if server.queue == 0 else (0.5, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
    until, found = since + max(8.0, 40 * server.seconds), list[Figures]()
    for number in sorted({max(1, round(top * factor)) for factor in factors} | {1, top + 1}):
        upstream = ModelledUpstream(server)
        upstream.join(FixedConcurrency(number))
        upstream.run(until)
        found.append(upstream.figures(since, until))
    fit = [each for each in found if each.refused <= 0.02 + 1.3 * server.errors]
    best = max(each.goodput for each in fit)
    return next(each for each in fit if each.goodput >= 0.99 * best)
