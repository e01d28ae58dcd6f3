"""How many lines this worker has in flight for each routing key and model, and how fast it finishes them.

Heartbeats report it. The demand of workers is computed from the reports (store/sql/monitoring/demand.sql).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import structs

from batchline.model import Completed, Failed, Item, KeyLoad, Verdict
from batchline.upstreams.in_flight_limit import InFlightLimit
from batchline.worker.clock import Clock
from batchline.worker.producer import Producer

_DONE = (Completed, Failed)
# Seconds after which what was measured counts a third. Longer if requests take longer: their answers come in
# waves.
_MEMORY, _MEMORY_IN_REQUESTS = 60.0, 3.0
# A key that had nothing in flight for so long is not reported any more.
_FORGET_AFTER = 600.0
# Reported keys, the busiest ones.
_MAX_KEYS = 50

# A routing key, a model, and the name of the upstream, if several serve the key.
Key: TypeAlias = tuple[str, str, str | None]


class BusyRate:
    """Items per second of the time in which there were any. Older times count less."""

    def __init__(self) -> None:
        self._items = 0.0
        self._seconds = 0.0

    def add(self, items: int, seconds: float, memory: float) -> None:
        # Until the first answer, nobody knows how long a request takes.
        kept = math.exp(-seconds / memory) if self._items else 1.0
        self._items = self._items * kept + items
        self._seconds = self._seconds * kept + seconds

    @property
    def per_second(self) -> float:
        return self._items / self._seconds if self._seconds > 0 else 0.0


def _key(item: Item) -> Key:
    claim = item.claim
    return claim.key, claim.model, claim.sender


def _with_limit(load: KeyLoad, limit: InFlightLimit) -> KeyLoad:
    return structs.replace(
        load,
        limit=limit.value,
        ceiling=int(limit.maximum),
        auto=limit.auto,
        signal=limit.signal.label,
    )


class LoadMeter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._measured_at = clock()
        self._finished: Counter[Key] = Counter()
        # Seconds of the requests that were answered last.
        self._latency = 0.0
        self._rates: dict[Key, BusyRate] = {}
        self._busy_at: dict[Key, float] = {}

    def stored(self, verdicts: Sequence[Verdict]) -> None:
        """Count items that are finished."""
        done = [verdict.item for verdict in verdicts if isinstance(verdict, _DONE)]
        if done:
            self._finished.update(_key(item) for item in done)
            seconds = done[-1].stamps.answered - done[-1].stamps.sent
            self._latency = seconds if self._latency == 0 else self._latency + (seconds - self._latency) / 4

    def loads(self, producers: Iterable[Producer]) -> list[KeyLoad]:
        """What there is to report now. Call it regularly: it measures the time since the last call."""
        in_flight, limited, unreachable = Counter[Key](), set[Key](), dict[Key, str]()
        limits = dict[Key, InFlightLimit]()
        for producer in producers:
            keys = Counter(_key(item) for item in producer.running())
            in_flight += keys
            limits.update(dict.fromkeys(keys, producer.limit))
            if producer.slowed:
                limited.update(keys)
            if producer.outage is not None:
                unreachable.update(dict.fromkeys(keys, producer.outage))
        self._measure(in_flight)
        loads = []
        for key, rate in self._rates.items():
            load = KeyLoad(
                key=key[0],
                model=key[1],
                in_flight=in_flight[key],
                rate=round(rate.per_second, 3),
                limited=key in limited,
                unreachable=unreachable.get(key),
                upstream=key[2],
            )
            loads.append(_with_limit(load, limits[key]) if key in limits else load)
        return sorted(loads, key=lambda load: (-load.in_flight, -load.rate, load.key))[:_MAX_KEYS]

    def _measure(self, in_flight: Counter[Key]) -> None:
        now = self._clock()
        seconds, self._measured_at = now - self._measured_at, now
        finished, self._finished = self._finished, Counter()
        memory = max(_MEMORY, _MEMORY_IN_REQUESTS * self._latency)
        for key in in_flight.keys() | finished.keys():
            self._rates.setdefault(key, BusyRate()).add(finished[key], seconds, memory)
            self._busy_at[key] = now
        for key in [key for key, at in self._busy_at.items() if now - at > _FORGET_AFTER]:
            del self._rates[key], self._busy_at[key]
