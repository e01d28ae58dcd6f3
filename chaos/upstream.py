"""The upstream of the harness: supports idempotency keys, keeps a ledger, and fails on command.

It gives the same answers as `batchline simulate`, over the same HTTP code. The `x-request-id` of an answer
contains its key, so that an output line shows which attempt was answered. The key and the seed determine
which keys a fault affects.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from zlib import crc32

import msgspec

from batchline.simulate import answer_to
from batchline.simulate.http import Connection, ReceivedRequest
from chaos.ledger import LedgerEntry, LedgerEvent, RequestLedger
from chaos.reopening import ReopenedAddress
from chaos.schedule import TIMEOUT, Fault

LATENCY = 0.15
"""Seconds per answer: long enough that a failing process has requests in flight."""
REFUSED = "refuse this"
"""A line with this text always gets a 400."""

PADDINGS = tuple(megabytes * 1024 * 1024 for megabytes in (2, 8, 24, 70))
"""Sizes of oversized answers in bytes; the last one exceeds Batchline's limit."""

_ERRORS = (429, 500, 503)
# After this time, a client that was frozen twice, on a machine that stalls, may have given up.
_PROMPT = TIMEOUT / 2
# An upstream that stalls takes this share of the time limit.
_STALL = 0.7


def padded(answer: bytes, size: int) -> bytes:
    """Add a member to the answer, so that it has this size."""
    return b'%b,"padding":"%b"}' % (answer.rstrip()[:-1], b"x" * size)


class FaultyUpstream:
    def __init__(self, seed: int) -> None:
        self.ledger = RequestLedger()
        self._seed = seed
        self._moods: dict[Fault, float] = {}
        self._running: dict[str, list[Connection]] = {}
        self._connections: set[Connection] = set()
        self._waiting: dict[Connection, tuple[LedgerEntry, float]] = {}
        """The clients that wait for an answer, and since when."""
        self._runs: dict[str, asyncio.TimerHandle] = {}
        """The timers of keys that run."""
        self._queue: deque[tuple[str, float, Callable[[], None]]] = deque()
        """Keys that wait to run, while few may run at a time."""
        self._addresses = (ReopenedAddress(self._handle, self), ReopenedAddress(self._handle_starving, self))

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def url(self) -> str:
        return self._addresses[0].url

    @property
    def starving_url(self) -> str:
        """The URL of a second upstream with the same ledger, which refuses or stalls on command."""
        return self._addresses[1].url

    async def start(self) -> None:
        await self.come_up()

    async def stop(self) -> None:
        await self.go_down()
        for address in self._addresses:
            await address.free()

    async def come_up(self) -> None:
        for address in self._addresses:
            await address.open()

    async def go_down(self) -> bool:
        """Accept no connection, and lose all requests in flight. What has run stays known."""
        for address in self._addresses:
            await address.close()
        for timer in self._runs.values():
            timer.cancel()
        for of_running in (self._runs, self._running, self._queue):
            of_running.clear()
        for entry, _ in self._waiting.values():
            entry.events[LedgerEvent.DROPPED] += 1
        for connection in tuple(self._connections):
            connection.abort()
        return True

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._waits_no_more(connection)

    def be(self, mood: Fault, share: float) -> None:
        """Start a fault that affects this share of the keys, or has this strength."""
        self._moods[mood] = share
        self._run_next()

    def stop_being(self, mood: Fault) -> None:
        self._moods.pop(mood, None)
        self._run_next()

    def heal(self) -> None:
        self._moods.clear()
        self._run_next()

    def _handle(self, connection: Connection, request: ReceivedRequest) -> None:
        if request.method != b"POST":
            connection.answer(200, b'{"object":"list","data":[]}')
            return
        key, entry = self._receive(connection, request)
        if key in self._running:
            self._running[key].append(connection)
        elif entry.runs and not self._strikes(Fault.FORGET, key):
            self._later(LATENCY, lambda: self._answer(connection, key, entry))
        else:
            self._admit(connection, key, entry)

    def _handle_starving(self, connection: Connection, request: ReceivedRequest) -> None:
        strength = self._moods.get(Fault.STARVE)
        if request.method != b"POST" or strength is None:
            self._handle(connection, request)
            return
        key, entry = self._receive(connection, request)
        if key in self._running:
            self._running[key].append(connection)
        elif entry.runs:
            self._later(LATENCY, lambda: self._answer(connection, key, entry))
        elif strength < 0.5:
            self._say(connection, key, entry, 429, b'{"error":{"message":"injected 429"}}')
        else:
            self._run(key, entry, [connection], _STALL * TIMEOUT, twice=False)

    def _receive(self, connection: Connection, request: ReceivedRequest) -> tuple[str, LedgerEntry]:
        key = (request.key or b"").decode("latin-1")
        entry = self.ledger.request(key, request.body)
        self._waiting[connection] = entry, asyncio.get_running_loop().time()
        return key, entry

    def _waits_no_more(self, connection: Connection) -> None:
        """The client is answered, or has left."""
        if (waiting := self._waiting.pop(connection, None)) is not None:
            entry, since = waiting
            if asyncio.get_running_loop().time() - since >= _PROMPT:
                entry.events[LedgerEvent.LATE] += 1

    def _admit(self, connection: Connection, key: str, entry: LedgerEntry) -> None:
        if self._strikes(Fault.HANG, key):
            entry.events[LedgerEvent.HUNG] += 1
            connection.hang()
        elif self._strikes(Fault.REFUSE, key):
            self._refuse(connection, key, entry)
        elif REFUSED.encode() in entry.body:
            message = msgspec.json.encode({"error": {"message": "this line is refused", "code": "refused"}})
            self._later(LATENCY, lambda: self._say(connection, key, entry, 400, message))
        elif self._strikes(Fault.DROP, key):
            self._drop(connection, key, entry)
        else:
            late = self._strikes(Fault.LATE, key)
            seconds = TIMEOUT * (0.4 + self._point("late", key)) if late else LATENCY
            self._run(key, entry, [connection], seconds, twice=late)

    def _drop(self, connection: Connection, key: str, entry: LedgerEntry) -> None:
        """Drop the connection. Half of the dropped requests run before."""
        entry.events[LedgerEvent.DROPPED] += 1
        if self._point("drop after", key) < 0.5:
            connection.hang_up()
        else:
            self._run(key, entry, [], LATENCY, to_drop=connection)

    def _refuse(self, connection: Connection, key: str, entry: LedgerEntry) -> None:
        status = _ERRORS[int(self._point("status", key) * len(_ERRORS))]
        message = msgspec.json.encode({"error": {"message": f"injected {status}"}})
        headers = b"Retry-After: 0.5\r\n" if status == 429 else b""
        self._say(connection, key, entry, status, message, headers)

    def _run(
        self,
        key: str,
        entry: LedgerEntry,
        callers: list[Connection],
        seconds: float,
        to_drop: Connection | None = None,
        twice: bool = False,
    ) -> None:
        self._running[key] = callers

        def ran() -> None:
            del self._running[key], self._runs[key]
            self._run_next()
            entry.forgotten += entry.runs > 0
            entry.runs += 1
            if to_drop is not None:
                to_drop.hang_up()
            for caller in callers:
                self._answer(caller, key, entry, twice=twice)

        self._queue.append((key, seconds, ran))
        self._run_next()

    def _run_next(self) -> None:
        """Run what waits, as far as the capacity allows."""
        capacity = self._moods.get(Fault.CAPACITY, math.inf)
        while self._queue and len(self._runs) < capacity:
            key, seconds, ran = self._queue.popleft()
            self._runs[key] = asyncio.get_running_loop().call_later(seconds, ran)

    def _answer(self, caller: Connection, key: str, entry: LedgerEntry, twice: bool = False) -> None:
        answer = answer_to("/v1/chat/completions", entry.body)
        if self._strikes(Fault.OVERSIZED, key):
            entry.events[LedgerEvent.OVERSIZED] += 1
            answer = padded(answer, PADDINGS[int(self._point("size", key) * len(PADDINGS))])
        self._say(caller, key, entry, 200, answer, twice=twice)

    def _say(
        self,
        caller: Connection,
        key: str,
        entry: LedgerEntry,
        status: int,
        body: bytes,
        headers: bytes = b"",
        twice: bool = False,
    ) -> None:
        entry.statuses[status] += 1
        self._waits_no_more(caller)
        if caller.gone:
            return
        entry.events[LedgerEvent.ANSWERED] += 1
        if twice:
            # Send the same answer twice, and close: a client that reads on could only mistake the copy for
            # the answer to its next request.
            caller.wind_up()
            whole = b"x-request-id: %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
            first = whole % (key.encode(), len(body), body)
            headers = first + b"HTTP/1.1 %d OK\r\n" % status
        caller.answer(status, body, b"x-request-id: %b\r\n%b" % (key.encode(), headers))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    def _strikes(self, mood: Fault, key: str) -> bool:
        share = self._moods.get(mood)
        return share is not None and self._point(mood, key) < share

    def _point(self, what: str, key: str) -> float:
        """A number from 0 to 1, the same for the same seed, line, attempt and `what`.

        The key starts with the batch's id, which differs in every run, so that part is ignored.
        """
        return crc32(f"{self._seed} {what} {key.partition('-')[2]}".encode()) / 2**32
