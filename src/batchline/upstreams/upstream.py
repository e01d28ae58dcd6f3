"""One upstream: how many requests may be in flight, how fast they go out, and whether it can be reached.

An executor asks `may_send` before a request and reports the outcome after it. Nothing here knows about HTTP,
so the same object can limit a provider, a Python handler or a cluster.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from batchline.secrets.addresses import public_url
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.pace import AnswerRate, Pace
from batchline.upstreams.retry import Backoff, Outage
from batchline.upstreams.view import Latencies, UpstreamView

_log = structlog.get_logger("batchline.upstream")


@dataclass(frozen=True, slots=True)
class Timing:
    """Clocks, chance and timers; tests replace them."""

    # Seconds that only pass, and Unix time.
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    random: Callable[[], float] = random.random
    timer: Callable[[float], asyncio.Timeout] = asyncio.timeout


class Upstream:
    """Has a pace while it refuses requests with 429, and an outage while it cannot be connected to.
    `stopping` is set when the worker stops: then nothing waits any longer."""

    def __init__(
        self,
        url: str,
        concurrency: int,
        stopping: asyncio.Event,
        timing: Timing,
        connect_retry: Backoff,
    ) -> None:
        self.url = url
        self.limit = InFlightLimit(concurrency)
        # Whether a request may have to wait. An attribute, because it is read for every item.
        self.limited = False
        # When each request in flight was sent, by any key, in the order of sending.
        self.sent: dict[int, float] = {}
        self._stopping = stopping
        self._timing = timing
        self._connect_retry = connect_retry
        self._answers = AnswerRate(timing.clock)
        self._latencies = Latencies()
        self._pace: Pace | None = None
        self._outage: Outage | None = None

    @property
    def displayed(self) -> str:
        """Its URL without secrets."""
        return public_url(self.url)

    @property
    def outage(self) -> str | None:
        """Why it cannot be connected to; None: it can."""
        return None if self._outage is None else self._outage.reason

    async def may_send(self, fence: Callable[[], object | None]) -> bool:
        """Wait for the upstream's pace, and for the end of an outage's delay. Call it while `limited`.

        Without the latter, items would be claimed, fail to connect and be given back as fast as the machine
        can, and leave many free spans behind. False: do not send, because the worker stops, or has lost its
        lease meanwhile, so that another worker may be sending this item.
        """
        sender = fence()
        if self._outage is not None and await self._stops_within(self._outage.seconds_left):
            return False
        if (pace := self._current_pace()) is not None:
            async with pace.line:
                # Asked again after each wait: the rate may have been cut meanwhile.
                while seconds := pace.acquire():
                    if await self._stops_within(seconds):
                        return False
        return sender is not None and fence() == sender

    def view(self) -> UpstreamView:
        """How it stands now."""
        now, limit, pace, outage = self._timing.clock(), self.limit, self._current_pace(), self._outage
        oldest = next(iter(self.sent.values()), None)
        p50, p95 = self._latencies.quantiles(0.5, 0.95)
        waiting = pace is not None and pace.line.locked()
        return UpstreamView(
            url=self.displayed,
            in_flight=len(self.sent),
            limit=limit.value,
            max_limit=limit.maximum,
            full=limit.in_flight >= limit.value,
            p50=p50,
            p95=p95,
            oldest=None if oldest is None else now - oldest,
            rate_limit=pace.rate if pace is not None and waiting else None,
            paused_for=pace.seconds_left if pace is not None and waiting else 0.0,
            unreachable_for=None if outage is None else now - outage.began,
            next_try=0.0 if outage is None else outage.seconds_left,
            last_try=0.0 if outage is None else now - outage.tried_at,
            reason="" if outage is None else outage.reason,
        )

    def answered(self, started: float) -> None:
        """Count an answer that was no refusal, to a request started at `started`."""
        self._latencies.add(self._answers.add() - started)

    def refused(self, started: float, requested: float) -> None:
        """Note a 429 for a request started at `started`, with the requested delay."""
        pace = self._current_pace()
        if pace is None:
            pace = self._pace = Pace(self._answers.per_second, self._timing.clock)
            self.limited = True
            _log.warning("upstream limits the rate", upstream=self.displayed)
        pace.refused(started, requested)

    def unreached(self, started: float, reason: str) -> float:
        """No connection could be made for a request that was started then; how long the item should wait."""
        if self._outage is None:
            self._outage = Outage(self._connect_retry, self._timing.clock, self._timing.random)
            self.limited = True
            _log.warning("upstream unreachable", upstream=self.displayed, reason=reason)
        return self._outage.failed(started, reason)

    def reached(self) -> None:
        """It answered, whatever it said. Call it while `limited`."""
        if self._outage is not None:
            self._outage = None
            self.limited = self._pace is not None
            _log.info("upstream reachable again", upstream=self.displayed)

    def _current_pace(self) -> Pace | None:
        if self._pace is not None and self._pace.over:
            self._pace = None
            self.limited = self._outage is not None
        return self._pace

    async def _stops_within(self, seconds: float) -> bool:
        """Wait so long, unless the worker stops before."""
        if not seconds:
            return False
        try:
            async with self._timing.timer(seconds):
                return await self._stopping.wait()
        except TimeoutError:
            return False
