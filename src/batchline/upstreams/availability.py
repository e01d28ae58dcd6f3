"""Whether an upstream is there: what outcomes, crashes and probes say about it, and how it recovers.

It opens and closes the upstream's breaker. It reads outcomes that executors report, sends probes while the
breaker is open, and notifies its watchers. It does not decide which line is sent; `admission` does.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from batchline.model import Item
from batchline.secrets.tracebacks import traceback_of
from batchline.upstreams.breaker import GATEWAY_ERRORS, Breaker, BreakerState, FailureStreak
from batchline.upstreams.crashes import CRASH_LIKE, CrashWatch, FailedRequest, Fate, Reach
from batchline.upstreams.retry import Backoff
from batchline.upstreams.timing import Timing

_NO_HEALTH = "no connection to its health path can be made"

_log = structlog.get_logger("batchline.upstream")


class Probed(Protocol):
    """An upstream, as far as it matters whether it is there."""

    # A path that answers 200 while the upstream is well, and how often it is requested while it is not, or
    # while nothing else is sent.
    health_path: str | None
    health_every: float

    @property
    def displayed(self) -> str:
        """Its URL without secrets."""
        ...

    @property
    def sent(self) -> Mapping[int, float]:
        """When each request in flight was sent, by the id of its item."""
        ...

    async def probe(self) -> Reach:
        """Send a request that asks for nothing."""
        ...


class Availability:
    """`stopping` is set when the worker stops: then it does not recover any more."""

    def __init__(
        self, upstream: Probed, stopping: asyncio.Event, timing: Timing, connect_retry: Backoff
    ) -> None:
        self._upstream = upstream
        self._stopping = stopping
        self._timing = timing
        self.breaker = Breaker(connect_retry, timing.clock, timing.random)
        self._streak = FailureStreak(timing.clock)
        self._crashes = CrashWatch(timing.clock, timing.timer, self._probe_after_failure, self._crashed)
        # Whether outcomes must be looked at. An attribute, because it is read for every item.
        self.troubled = False
        # Whether connections worked at the last sign that it is away.
        self.connects = True
        # What the last probe of this outage has shown.
        self.probed: Reach | None = None
        # The last good answer, the last sign that it was away, and the last probe after that which succeeded.
        self.last_good = self._away_at = self._proven_at = -math.inf
        self._checked_at = -math.inf
        # Called when lines that wait for it must look again.
        self.on_change: Callable[[], None] = lambda: None
        self._watchers: list[Callable[[], None]] = []
        self._last_state = BreakerState.CLOSED
        self._recovery: asyncio.Task[None] | None = None

    @property
    def away(self) -> bool:
        """Whether gateway errors are those of an outage. They are not if only lines get them, and probes do
        not."""
        return not self.breaker.closed and self.probed is not Reach.PRESENT

    @property
    def rest(self) -> float:
        """How long a line should wait that may not be sent now."""
        outage = self.breaker.outage
        return 0.0 if outage is None or self._stopping.is_set() else outage.delay

    @property
    def crashes(self) -> int:
        """How often it has crashed while requests were in flight."""
        return self._crashes.crashes

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when the state of the breaker has changed."""
        self._watchers.append(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.remove(callback)

    # --- Outcomes ------------------------------------------------------------------------------------------

    def answered(self, started: float) -> None:
        """A request that was started then has an answer that is no error. Call it while `troubled`."""
        self._crashes.answered(started)
        self.reached(started)

    def ended(self, key: int) -> None:
        """A request has ended in whatever way. Call it while `troubled`."""
        self._crashes.ended(key)
        self._look()

    def unreached(self, started: float, reason: str) -> float:
        """No connection could be made for a request that was started then; how long the item should wait."""
        self._crashes.unreached()
        return self._open(started, reason, connects=False)

    def reached(self, started: float) -> None:
        """It answered a request that was started then, and not with a gateway error. An answer to a request
        from before an outage does not end the outage."""
        outage = self.breaker.outage
        if self.troubled and (outage is None or started >= outage.began):
            self.recovered()

    async def fate(self, item: Item, started: float, status: int | None) -> Fate:
        """Why a request failed that was answered with this error. None: its connection was lost."""
        if status is None or status in CRASH_LIKE:
            proven = max(self.last_good, self._proven_at) > self._away_at
            failed = FailedRequest(id(item), started, status is None, item.claim.crashes > 0, proven)
            self.troubled = True
            fate = await self._crashes.fate(failed, self._upstream.sent)
            if fate is not Fate.SINGLE:
                return fate
        if status is None or status in GATEWAY_ERRORS:
            self._failed(item, started, status)
        elif status == 500:
            self.reached(started)
        return Fate.SINGLE

    def excuses(self, started: float, status: int | None) -> bool:
        """Whether such a failure says more about the upstream than about the line: it refuses one of several
        requests, or gives nothing but gateway errors. None: the connection was lost."""
        if status in (429, 503) and (len(self._upstream.sent) > 1 or self.last_good >= started):
            return True
        away = self._streak.count > 1 or not self.breaker.closed
        return away and (status is None or status in GATEWAY_ERRORS)

    def _failed(self, item: Item, started: float, status: int | None) -> None:
        """A gateway error, or a lost connection that was no crash."""
        breaker, many = self.breaker, self._streak.failed(item.request_id, len(self._upstream.sent))
        self.troubled = True
        if many or (breaker.state is BreakerState.TRIAL and breaker.trying == id(item)):
            what = "connections are lost" if status is None else f"it answers {status}"
            self._open(started, f"{what}, and nothing else for {self._streak.count} requests", connects=True)

    def _crashed(self, in_flight: int) -> None:
        _log.warning(
            "upstream crashed", upstream=self._upstream.displayed, crashes=self.crashes, in_flight=in_flight
        )

    # --- The breaker ---------------------------------------------------------------------------------------

    def _open(self, started: float, reason: str, *, connects: bool) -> float:
        """Open the breaker, or leave it open; how long the item should wait. `connects`: whether connections
        work."""
        if self.breaker.outage is None:
            event = "upstream unavailable" if connects else "upstream unreachable"
            _log.warning(event, upstream=self._upstream.displayed, reason=reason)
        self.connects = connects
        delay = self.breaker.fail(started, reason)
        self._away_at = self._timing.clock()
        self._look()
        self._changed()
        is_open = self.breaker.state is BreakerState.OPEN
        if is_open and (self._recovery is None or self._recovery.done()):
            self._recovery = asyncio.get_running_loop().create_task(self._recover())
        return delay

    def recovered(self) -> None:
        """Close the breaker: the upstream is there."""
        self._streak.end()
        self.probed = None
        if not self.breaker.closed:
            self.breaker.close()
            self._changed()
            _log.info("upstream available again", upstream=self._upstream.displayed)
        self._look()

    def _look(self) -> None:
        self.troubled = bool(self._streak.count) or not self.breaker.closed or self._crashes.active

    def _changed(self) -> None:
        self.on_change()
        if self.breaker.state is not self._last_state:
            self._last_state = self.breaker.state
            for callback in tuple(self._watchers):
                callback()

    # --- Probes --------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Let lines try it when the delay has passed, and the health check succeeds if there is one. Without
        one, it is enough that a connection can be made."""
        breaker, upstream = self.breaker, self._upstream
        while breaker.state is BreakerState.OPEN:
            seconds, checked = breaker.seconds_left, upstream.health_path is not None
            wait = min(seconds, upstream.health_every) if checked else seconds
            if await self._timing.is_set_within(self._stopping, wait):
                return
            started = self._timing.clock()
            reach = await self._reach()
            if breaker.state is not BreakerState.OPEN:
                # A line was answered meanwhile, which shows more than a probe.
                return
            self.probed = reach
            if reach is Reach.PRESENT:
                # If it fails from now on, it was not away before.
                self._proven_at = self._timing.clock()
            elif reach is Reach.UNREACHABLE or upstream.health_path is not None:
                breaker.fail(started, breaker.outage.reason if breaker.outage is not None else "")
                continue
            breaker.allow_trial()
            self._changed()

    async def check_health(self) -> None:
        """Request the health path if producers have the upstream, and it has not been used for a while. So it
        is known to be away before a line is sent to it."""
        now, upstream = self._timing.clock(), self._upstream
        if upstream.health_path is None or not self._watchers or not self._rests:
            return
        if now - max(self.last_good, self._checked_at) < upstream.health_every:
            return
        self._checked_at = now
        reach = await upstream.probe()
        if reach in (Reach.UNREACHABLE, Reach.AWAY) and self._rests:
            connects = reach is Reach.AWAY
            reason = "it is not well by its health path" if connects else _NO_HEALTH
            self._open(now, reason, connects=connects)

    @property
    def _rests(self) -> bool:
        return not self._upstream.sent and self.breaker.closed

    async def _reach(self) -> Reach:
        """A probe. If it fails in a way that nobody has thought of, a line must tell: otherwise the breaker
        would stay open for ever."""
        try:
            return await self._upstream.probe()
        except Exception as error:  # noqa: BLE001
            _log.error("probe failed", upstream=self._upstream.displayed, exception=traceback_of(error))
            return Reach.UNCLEAR

    async def _probe_after_failure(self) -> Reach:
        started = self._timing.clock()
        reach = await self._reach()
        if reach in (Reach.UNREACHABLE, Reach.AWAY):
            connects = reach is Reach.AWAY
            since = "a gateway says that it is away" if connects else "it cannot be reached"
            self._open(started, f"requests in flight were lost, and {since} since", connects=connects)
        return reach

    async def close(self) -> None:
        """No probe is sent any more."""
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
