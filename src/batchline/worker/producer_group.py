"""The producers of one routing key: one for each upstream that serves it.

Each claims what its upstream can take. While several of them have room, their weights decide (balance). One
whose upstream is unavailable gives back what it has not sent, and claims nothing; the others go on. One of
weight 0 claims only while all others are unavailable.

A line that an upstream may have worked on stays with it, whichever producer claims it: the line is passed on
to the producer of that upstream. See docs/decisions/0027-routing.md.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import structlog
from msgspec.structs import replace

from batchline.model import Claim, Deferred, Item
from batchline.worker.balance import Balance
from batchline.worker.context import ProducerContext
from batchline.worker.producer import Producer

# A line whose upstream this worker does not have comes back after this long: another worker may have it.
_UNKNOWN_DELAY = 30.0
# A line whose upstream is full or unavailable comes back after this long.
_BUSY_DELAY = 2.0
# Lines that are claimed for an upstream that was away until now: one that tries, and one that waits for it.
_MAX_ON_TRIAL = 2

_log = structlog.get_logger("batchline.routing")


class ProducerGroup:
    """`on_idle` is called when no producer has anything to do. It is empty at first, because producers need
    it; `add` fills it."""

    def __init__(
        self, key: str, context: ProducerContext, on_idle: Callable[["ProducerGroup"], None]
    ) -> None:
        self.key = key
        self.producers: list[Producer] = []
        self._settler = context.settler
        self._clock = context.clock
        self._on_idle = on_idle
        self._retired = False
        # When items were claimed last.
        self.busy_at = context.clock()
        self._balance = Balance(())
        self._change = asyncio.Event()
        self._warned: set[str] = set()

    def add(self, producers: Sequence[Producer]) -> None:
        self.producers = list(producers)
        self._balance = Balance([each.of.weight for each in producers])
        for producer in producers:
            producer.watch()
        self.refresh()

    def close(self) -> None:
        for producer in self.producers:
            producer.unwatch()

    def retire(self) -> None:
        """Claim no more: other keys wait."""
        self._retired = True
        self.refresh()

    @property
    def idle(self) -> bool:
        return all(producer.idle for producer in self.producers)

    @property
    def available(self) -> bool:
        return any(producer.available for producer in self.producers)

    def intake(self, producer: Producer) -> "GroupIntake":
        return GroupIntake(self, producer)

    # --- Who may claim -------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Decide anew which producers claim, because an upstream became available or unavailable."""
        sound = [each for each in self.producers if each.available and not each.on_trial]
        usual = any(each.of.weight and not each.of.escalation for each in sound)
        for producer in self.producers:
            spare = not producer.of.weight and not producer.of.escalation
            waits = (spare and usual) or (producer.of.escalation and not producer.escalated)
            producer.set_active(producer.available and not waits and not self._retired)
        self.notify()

    def allowed(self, producer: Producer) -> int | None:
        """How many lines it may claim now; None: as many as it wants."""
        if producer.on_trial:
            return max(_MAX_ON_TRIAL - producer.held, 0)
        if len(self.producers) == 1 or producer.of.escalation:
            return None
        return self._balance.allowed(self.producers.index(producer), self._asking())

    def _asking(self) -> list[int]:
        """Those that would claim now. One on trial may claim no more before its line is answered: the others
        must not wait for that."""
        return [
            number
            for number, each in enumerate(self.producers)
            if each.wants_lines and not each.of.escalation and not each.on_trial
        ]

    async def changed(self) -> None:
        """Wait until another one has claimed, or may not claim any more."""
        await self._change.wait()

    def notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # --- What was claimed ----------------------------------------------------------------------------------

    def claimed(self, producer: Producer, lines: int, wanted: int) -> None:
        number, self.busy_at = self.producers.index(producer), self._clock()
        self._balance.claimed(number, lines, wanted, self._asking())
        self.notify()

    def nothing_found(self) -> None:
        self.notify()
        if self.idle:
            self._on_idle(self)

    def put(self, producer: Producer, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        """Take items that this producer has claimed."""
        own = self._own(producer, items)
        if producer.available:
            producer.buffer.put(own, left_out)
        else:
            self._give_back(own)

    def accept(self, items: Sequence[Item], left_out: Sequence[Item]) -> int:
        """Take items that were claimed for no upstream in particular; how many. If there are several, no line
        may be sent that is not noted as sent to one of them. So these are given back, to be claimed again."""
        producer = self.producers[0]
        if len(self.producers) > 1 or not producer.available:
            self._give_back(items)
            return 0
        producer.accept(self._own(producer, items), left_out)
        return len(items)

    def _own(self, producer: Producer, items: Sequence[Item]) -> Sequence[Item]:
        """The items that the producer itself runs. The others go to their upstream."""
        if not any(item.claim.sent_to is not None for item in items):
            return items
        self._pass_on([item for item in items if not self._keeps(producer, item.claim)])
        return [item for item in items if self._keeps(producer, item.claim)]

    def _keeps(self, producer: Producer, claim: Claim) -> bool:
        """Whether the producer that has claimed the items runs them."""
        if claim.sent_to is None or claim.sent_to == producer.of.name:
            return True
        before = self._named(claim.sent_to)
        return producer.of.fail_over if before is None else before.of.fail_over

    def _pass_on(self, items: Iterable[Item]) -> None:
        """Give the items to the upstream that may have worked on them before."""
        for name, some in groupby(items, lambda item: item.claim.sent_to):
            lines, to = list(some), self._named(name or "")
            if to is None:
                self._warn(name or "")
                self._give_back(lines, _UNKNOWN_DELAY)
            elif not to.available:
                # Not before it may be back: they would be claimed and given back in vain.
                self._give_back(lines, max(_BUSY_DELAY, to.rest))
            else:
                to.accept(_sent_by(to.of.name, lines), delay=_BUSY_DELAY)

    def _named(self, name: str) -> Producer | None:
        return next((each for each in self.producers if each.of.name == name), None)

    def _warn(self, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "lines may have run at an upstream that this worker does not have; they wait for a worker"
                " that has it, or for fail_over_after_timeout",
                upstream=name,
                model=self.key,
            )

    def _give_back(self, items: Iterable[Item], delay: float = 0.0) -> None:
        for item in items:
            self._settler.add(Deferred(item, delay))


def _sent_by(name: str | None, items: Sequence[Item]) -> list[Item]:
    """The items as claimed for another upstream."""
    claims = {item.claim.span_id: replace(item.claim, sender=name) for item in items}
    return [replace(item, claim=claims[item.claim.span_id]) for item in items]


class GroupIntake:
    """Where the claims of one producer go: its buffer, or that of another producer of its group."""

    def __init__(self, group: ProducerGroup, producer: Producer) -> None:
        self._group = group
        self._producer = producer
        self._wanted = 0

    def __len__(self) -> int:
        return len(self._producer.buffer)

    async def needs_refill(self) -> None:
        producer, group = self._producer, self._group
        while True:
            await producer.buffer.needs_refill()
            if not producer.active or group.allowed(producer) != 0:
                return
            await group.changed()

    def wanted(self) -> int:
        wanted, allowed = self._producer.buffer.wanted(), self._group.allowed(self._producer)
        self._wanted = wanted if allowed is None else min(wanted, allowed)
        return self._wanted

    def mark_full(self) -> None:
        if not self._producer.buffer.wanted():
            self._producer.buffer.mark_full()
            self._group.notify()

    def room_for(self, count: int) -> int | None:
        return self._producer.buffer.room_for(count)

    def put(self, items: Sequence[Item], left_out: Sequence[Item]) -> None:
        self._group.put(self._producer, items, left_out)
        self._group.claimed(self._producer, len(items) + len(left_out), self._wanted)
