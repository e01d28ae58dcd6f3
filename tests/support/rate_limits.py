"""A model of workers that keep a pace, and of the upstream whose limit they share, in a time of their own."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from batchline.simulate.faults import TokenBucket
from batchline.upstreams.pace import Pace


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Limit(Protocol):
    def wait_s(self) -> float:
        """0 if a request is let in; otherwise the seconds until one may be."""
        ...


class PerSecond:
    """So many in each second of the clock, and no more until the next one begins."""

    def __init__(self, maximum: int, clock: Callable[[], float]) -> None:
        self._maximum = maximum
        self._clock = clock
        self._second = self._taken = 0

    def wait_s(self) -> float:
        now = self._clock()
        if int(now) != self._second:
            self._second, self._taken = int(now), 0
        self._taken += 1
        return 0.0 if self._taken <= self._maximum else self._second + 1 - now


@dataclass(frozen=True)
class Sent:
    at: float
    worker: int
    refused: bool


@dataclass
class Worker:
    free: int
    pace: Pace | None = None
    waiting: bool = False


@dataclass
class World:
    """`answered` is what each worker had answered a second when it was first refused. Refusals come sooner
    than answers. `asks` makes the Retry-After of what the limit says; `spurious` are times at which one
    request is refused for no reason."""

    time: Time
    limit: Limit
    answered: float
    latency: float = 0.3
    refusal_latency: float = 0.02
    asks: Callable[[float], float] = lambda wait: wait
    spurious: list[float] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: Callable[[], int] = field(default_factory=lambda: count().__next__)

    def join(self, concurrency: int, at: float = 0.0) -> None:
        """A worker with more than enough to do."""
        number, worker = self._number(), Worker(concurrency)
        self._at(at, lambda: self._send_what_may(number, worker))

    def run(self, seconds: float) -> None:
        while self._events and self._events[0][0] < 100.0 + seconds:
            self.time.now, _, event = heapq.heappop(self._events)
            event()

    def let_in(self, since: float, until: float, worker: int | None = None) -> float:
        """Requests a second that were not refused."""
        return sum(not each.refused for each in self.between(since, until, worker)) / (until - since)

    def refused(self, since: float, until: float) -> int:
        return sum(each.refused for each in self.between(since, until))

    def between(self, since: float, until: float, worker: int | None = None) -> list[Sent]:
        return [
            each for each in self.sent if since <= each.at - 100.0 < until and worker in (None, each.worker)
        ]

    def _at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.time.now + delay, self._number(), event))

    def _send_what_may(self, number: int, worker: Worker) -> None:
        while worker.free and not worker.waiting:
            if worker.pace is not None and (seconds := worker.pace.acquire()):
                worker.waiting = True
                # No timer is finer than a millisecond.
                self._at(max(seconds, 0.001), lambda: self._wake(number, worker))
                return
            worker.free -= 1
            self._send(number, worker)

    def _wake(self, number: int, worker: Worker) -> None:
        worker.waiting = False
        self._send_what_may(number, worker)

    def _send(self, number: int, worker: Worker) -> None:
        sent_at, wait = self.time.now, self.limit.wait_s()
        if self.spurious and sent_at >= 100.0 + self.spurious[0]:
            self.spurious.pop(0)
            wait = wait or 0.001
        self.sent.append(Sent(sent_at, number, bool(wait)))

        def answer() -> None:
            worker.free += 1
            if wait:
                worker.pace = worker.pace or Pace(self.answered, self.time)
                worker.pace.refused(sent_at, self.asks(wait))
            self._send_what_may(number, worker)

        self._at(self.refusal_latency if wait else self.latency, answer)


def a_bucket(rate: float, **options: Any) -> World:
    time = Time()
    return World(time, TokenBucket(rate, time), answered=rate, **options)
