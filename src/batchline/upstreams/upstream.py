"""One upstream: how many requests may be in flight, which may be sent now, and whether it is available.

An executor asks `may_send` before a request, calls `begin` and `end` around it, and reports the outcome.
Nothing here knows about HTTP, so the same object can limit a provider, a Python handler or a cluster.

Each of these is a concept of its own: `key_limits`, `admission` and `availability`.
"""

import asyncio
import math
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from batchline.model import Item
from batchline.secrets.addresses import public_url
from batchline.upstreams.admission import Admission
from batchline.upstreams.availability import Availability
from batchline.upstreams.breaker import BreakerState
from batchline.upstreams.crashes import Fate, Reach
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.upstreams.key_limits import KeyLimits
from batchline.upstreams.pace import AnswerRate
from batchline.upstreams.quarantine import Quarantine
from batchline.upstreams.retry import Backoff
from batchline.upstreams.server_load import ServerLoad
from batchline.upstreams.timing import Timing
from batchline.upstreams.view import Latencies, UpstreamView

_log = structlog.get_logger("batchline.upstream")


class Upstream:
    """`stopping` is set when the worker stops: then nothing waits any longer."""

    def __init__(
        self,
        url: str,
        concurrency: int,
        stopping: asyncio.Event,
        timing: Timing,
        connect_retry: Backoff,
    ) -> None:
        self.url = url
        # A path that answers 200 while the upstream is well, and how often it is requested while it is not,
        # or while nothing else is sent.
        self.health_path: str | None = None
        self.health_every = 10.0
        # What runs and waits there by its own account; None: it has none.
        self.server_load: ServerLoad | None = None
        # Whether a request may have to wait. An attribute, because it is read for every item.
        self.limited = False
        # When each request in flight was sent, by the id of its item, in the order of sending.
        self.sent: dict[int, float] = {}
        self.limits = KeyLimits(concurrency, timing.now)
        self.availability = Availability(self, stopping, timing, connect_retry)
        self.admission = Admission(self.sent, self.availability, stopping, timing, self._set_limited)
        self._clock = timing.clock
        self._answers = AnswerRate(timing.clock)
        self._latencies = Latencies()

    def _set_limited(self, limited: bool) -> None:
        self.limited = limited

    @property
    def displayed(self) -> str:
        """Its URL without secrets."""
        return public_url(self.url)

    # --- Limits of requests in flight ----------------------------------------------------------------------

    @property
    def limit(self) -> InFlightLimit:
        """The limit of requests that have no routing key of their own."""
        return self.limits.get("")

    def limit_of(self, key: str) -> InFlightLimit:
        """The limit of requests for one routing key."""
        return self.limits.get(key)

    def resize(self, concurrency: int) -> None:
        """So many requests may be in flight from now on."""
        self.limits.resize(concurrency)

    @property
    def follows_load(self) -> bool:
        """Whether a limit could change by what runs and waits there."""
        return self.limits.follow_load

    def loaded(self, load: ServerLoad | None) -> None:
        """It has told what runs and waits there; None: it has not."""
        self.server_load = load
        if load is not None:
            self.limits.loaded(self._clock(), load)

    # --- Whether it is available ---------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """False while its breaker is open: nothing should be claimed for it."""
        return self.availability.breaker.state is not BreakerState.OPEN

    @property
    def on_trial(self) -> bool:
        """Whether few lines should be claimed for it, because it was away until now."""
        return self.availability.breaker.state is BreakerState.TRIAL

    @property
    def outage(self) -> str | None:
        """Why it is not available; None: it is, as far as is known."""
        outage = self.availability.breaker.outage
        return None if outage is None else outage.reason

    @property
    def away(self) -> bool:
        """Whether gateway errors are those of an outage. They are not if only lines get them, and probes do
        not."""
        return self.availability.away

    @property
    def rest(self) -> float:
        """How long a line should wait that may not be sent now."""
        return self.availability.rest

    @property
    def crashes(self) -> int:
        """How often it has crashed while requests were in flight."""
        return self.availability.crashes

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when `available` or `on_trial` has changed."""
        self.availability.watch(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self.availability.unwatch(callback)

    async def probe(self) -> Reach:
        """Send a request that asks for nothing. An upstream that does not know how is always there."""
        return Reach.PRESENT

    async def check_health(self) -> None:
        """Request the health path if producers have the upstream, and it has not been used for a while."""
        await self.availability.check_health()

    async def close(self) -> None:
        """Nothing is sent any more."""
        await self.availability.close()

    # --- Before and after a request ------------------------------------------------------------------------

    @property
    def quarantine(self) -> Quarantine:
        """Its lines that were in flight at a crash."""
        return self.admission.quarantine

    async def may_send(self, fence: Callable[[], object | None], item: Item) -> bool:
        """Wait for the breaker, for a line that runs alone, and for the upstream's pace. Call it while
        `limited`, and for lines that run alone.

        Without the first, items would be claimed, fail to connect and be given back as fast as the machine
        can, and leave many free spans behind. False: do not send, because the upstream is still away, the
        worker stops, or has lost its lease meanwhile, so that another worker may be sending this item.
        """
        return await self.admission.may_send(fence, item)

    def rest_of(self, item: Item) -> float:
        """How long this line should wait if it may not be sent now."""
        return self.admission.rest_of(item)

    def begin(self, item: Item) -> float:
        """A request is sent now; the time."""
        started = self.sent[id(item)] = self._clock()
        return started

    def end(self, item: Item) -> None:
        """The item's request has ended, or was not sent after all."""
        key = id(item)
        self.sent.pop(key, None)
        if self.availability.troubled:
            self.availability.ended(key)
        if self.limited:
            self.admission.release(key)

    # --- Outcomes ------------------------------------------------------------------------------------------

    def answered(self, started: float) -> None:
        """Count an answer that was no refusal and no error, to a request started at `started`."""
        availability = self.availability
        now = availability.last_good = self._answers.add()
        self._latencies.add(now - started)
        if availability.troubled:
            availability.answered(started)

    def refused(self, started: float, requested: float, key: str = "") -> None:
        """Note a 429 for a request started at `started`, with the requested delay and its routing key."""
        pace = self.admission.current_pace()
        if pace is None and not requested and self.limits.may_fall(key):
            # Fewer requests at once may be all that it takes.
            self.reached(started)
            return
        if pace is None:
            pace = self.admission.slow_down(self._answers.per_second)
            _log.warning("upstream limits the rate", upstream=self.displayed)
        pace.refused(started, requested)
        self.reached(started)

    def unreached(self, started: float, reason: str) -> float:
        """No connection could be made for a request that was started then; how long the item should wait."""
        return self.availability.unreached(started, reason)

    def reached(self, started: float = math.inf) -> None:
        """It answered a request that was started then, and not with a gateway error."""
        self.availability.reached(started)

    async def fate(self, item: Item, started: float, status: int | None) -> Fate:
        """Why a request failed that was answered with this error. None: its connection was lost."""
        return await self.availability.fate(item, started, status)

    def excuses(self, started: float, status: int | None) -> bool:
        """Whether such a failure says more about the upstream than about the line."""
        return self.availability.excuses(started, status)

    # --- The view ------------------------------------------------------------------------------------------

    def view(self) -> UpstreamView:
        """How it stands now."""
        # Of several limits, the one that most requests are in flight under explains the most.
        limits = self.limits.in_use()
        limit = max(limits, key=lambda each: each.in_flight)
        oldest = next(iter(self.sent.values()), None)
        p50, p95 = self._latencies.quantiles(0.5, 0.95)
        view = UpstreamView(
            url=self.displayed,
            in_flight=len(self.sent),
            limit=sum(each.value for each in limits),
            max_limit=int(limit.maximum),
            full=all(each.in_flight >= each.value for each in limits),
            auto=limit.auto,
            signal=limit.signal.value,
            signal_label=limit.signal.label,
            p50=p50,
            p95=p95,
            oldest=None if oldest is None else self._clock() - oldest,
            crashes=self.crashes,
            suspects=self.quarantine.suspects,
        )
        return self._with_outage(self._with_pace(view))

    def _with_pace(self, view: UpstreamView) -> UpstreamView:
        pace = self.admission.current_pace()
        if pace is None or not pace.line.locked():
            return view
        return replace(view, rate_limit=pace.rate, paused_for=pace.seconds_left)

    def _with_outage(self, view: UpstreamView) -> UpstreamView:
        outage, now = self.availability.breaker.outage, self._clock()
        if outage is None:
            return view
        return replace(
            view,
            unavailable_for=now - outage.began,
            next_try=outage.seconds_left,
            last_try=now - outage.tried_at,
            reason=outage.reason,
            connects=self.availability.connects,
        )
