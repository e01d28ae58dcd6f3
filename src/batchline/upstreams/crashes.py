"""Whether requests that failed together were ended by a crash of their upstream.

A crash: all requests in flight lose their connections at once, or most of them fail and then no connection
can be made. One lost connection while others are answered is none. An error (500, 502) of all requests in
flight is one only if the upstream is away afterwards: an engine that dies under its server answers so.

A request that failed waits for the decision, a second at most. Answers to others decide at once.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

# A decision comes within so many seconds after the first failure.
_WINDOW = 1.0
# A process that ends may take connections for a moment. After so many seconds it is gone.
_DYING = 0.5
# Answers that are read so soon after a lost connection may have been sent before it.
_GRACE = 0.05

CRASH_LIKE = frozenset({500, 502})
"""Statuses with which servers and gateways end requests whose engine or backend died."""


class Reach(Enum):
    """What a request to an upstream shows that asks for nothing."""

    PRESENT = "present"
    # No connection could be made.
    UNREACHABLE = "unreachable"
    # A gateway says that the backend is away.
    AWAY = "away"
    # It was connected to, and there was no answer.
    UNCLEAR = "unclear"


class Fate(Enum):
    """Why a request failed: by itself, because the upstream is away, or because it has crashed."""

    SINGLE = "single"
    AWAY = "away"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without a good answer, by the key under which it is in flight."""

    key: int
    started: float
    # Its connection was lost; otherwise it was answered with an error.
    lost: bool
    # The upstream crashed before while it had this line.
    suspect: bool
    # The upstream has answered since it was away. A gateway whose backend was away before has not crashed.
    proven: bool


class _Incident:
    """Requests that were in flight when the first of them failed."""

    def __init__(self, began: float, in_flight: Iterable[int]) -> None:
        self.began = began
        self.remaining = set(in_flight)
        self.size = len(self.remaining)
        self.lost = 0
        self.unreachable = False
        self.concluding = False
        self.decided: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()


class CrashWatch:
    """`probe` sends a request that asks for nothing. `on_crash` is called once per crash, with the number of
    requests that were in flight."""

    def __init__(
        self,
        clock: Callable[[], float],
        timer: Callable[[float], asyncio.Timeout],
        probe: Callable[[], Awaitable[Reach]],
        on_crash: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._timer = timer
        self._probe = probe
        self._on_crash = on_crash
        self._incident: _Incident | None = None
        # Requests that were in flight at the last crash, and whose end was not seen yet.
        self._victims: set[int] = set()
        # When the last crash was known.
        self._known_at = -math.inf
        self.crashes = 0

    @property
    def active(self) -> bool:
        """Whether the ends of requests must be reported."""
        return self._incident is not None or bool(self._victims)

    async def fate(self, failed: FailedRequest, in_flight: Iterable[int]) -> Fate:
        """Why this request failed. `in_flight` includes it."""
        key = failed.key
        if key in self._victims:
            self._victims.discard(key)
            return Fate.CRASHED
        if failed.lost and failed.started < self._known_at:
            # It was sent while the upstream died, so it is not what the upstream died of.
            return Fate.AWAY
        incident = self._incident
        if incident is None:
            incident = self._incident = _Incident(self._clock(), in_flight)
        incident.remaining.discard(key)
        incident.lost += failed.lost
        if incident.remaining:
            await self._wait(incident)
        if not incident.decided.done() and not incident.concluding:
            incident.concluding = True
            self._decide(incident, await self._concluded(incident, failed))
        return await asyncio.shield(incident.decided)

    def answered(self, started: float) -> None:
        """A request that was started then has an answer that is no error. Call it while `active`."""
        incident = self._incident
        if incident is None or incident.unreachable:
            return
        if started > incident.began or self._clock() > incident.began + _GRACE:
            self._decide(incident, Fate.SINGLE)

    def ended(self, key: int) -> None:
        """A request has ended in whatever way. Call it while `active`."""
        self._victims.discard(key)
        if self._incident is not None:
            self._incident.remaining.discard(key)

    def unreached(self) -> None:
        """No connection could be made."""
        if self._incident is not None:
            self._incident.unreachable = True
            if not self._incident.remaining:
                self._decide(self._incident, Fate.CRASHED)

    async def _wait(self, incident: _Incident) -> None:
        """Until it is decided, or the window has passed. Requests that run on then show that there was no
        crash, unless no connection can be made."""
        await self._undecided_for(incident, max(incident.began + _WINDOW - self._clock(), 0.0))
        if incident.unreachable:
            self._decide(incident, Fate.CRASHED)
        elif incident.remaining:
            self._decide(incident, Fate.SINGLE)

    async def _undecided_for(self, incident: _Incident, seconds: float) -> None:
        """Wait for a decision, so long at most."""
        with suppress(TimeoutError):
            async with self._timer(seconds):
                await asyncio.shield(incident.decided)

    async def _concluded(self, incident: _Incident, failed: FailedRequest) -> Fate:
        """All requests that were in flight have ended, and none was answered well."""
        several = incident.size > 1
        if incident.lost == incident.size and several:
            return Fate.CRASHED
        if not (several or failed.suspect or incident.lost):
            # An error for one line is the line's, unless the upstream is known to have crashed with it.
            return Fate.SINGLE
        try:
            reach = await self._probe()
            if reach is Reach.UNCLEAR and incident.lost:
                await self._undecided_for(incident, _DYING)
                reach = await self._probe()
        except BaseException:
            # Cancelled, or worse: nobody else may wait for this decision.
            self._decide(incident, Fate.SINGLE)
            raise
        match reach:
            case Reach.UNREACHABLE:
                return Fate.CRASHED
            case Reach.AWAY:
                return Fate.CRASHED if failed.proven else Fate.AWAY
            case _:
                return Fate.SINGLE

    def _decide(self, incident: _Incident, fate: Fate) -> None:
        if incident.decided.done():
            return
        incident.decided.set_result(fate)
        if self._incident is incident:
            self._incident = None
        if fate is Fate.CRASHED:
            self.crashes += 1
            self._known_at = self._clock()
            self._victims |= incident.remaining
            self._on_crash(incident.size)
