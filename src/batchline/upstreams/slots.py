"""How many requests may be in flight at one upstream, and whether a time-out counts as an attempt.

A server that works on few requests at a time queues the others. With more of them in flight than it can
answer within the timeout, requests time out that would have succeeded alone. So a time-out halves the limit,
once per round: what was sent before the limit was lowered says nothing about the lower one. Each round of
answers raises it by one, up to its maximum.

A time-out in company uses no attempt. This ends, because the limit grows by answers only: without answers it
falls to one, and a request that times out alone uses an attempt. And no line is spared more than a few times,
so one line that always times out cannot keep the limit low for the others.
"""

from batchline.model import Item

# The limit falls from 64 to 1 in six steps, and a line may be in flight at each of them.
_MAX_SPARED = 8
# Lines that were spared are remembered up to this number; time-outs of others then count.
_MAX_REMEMBERED = 10_000


class Slots:
    """The slots of one upstream. `limit` lies between 1 and `maximum`, and changes while requests run."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.limit = maximum
        self.running: dict[int, Item] = {}
        # Raised when the limit is lowered: who sends a request notes it.
        self.round = 0
        # Answers are worth counting. Kept as an attribute because it is read for every item.
        self.adapting = False
        self._answers = 0
        self._spared: dict[str, int] = {}

    @property
    def free(self) -> int:
        """Negative while more is in flight than a lowered limit allows."""
        return self.limit - len(self.running)

    def answered(self, item: Item) -> None:
        """Note an answer. Call it while `adapting`."""
        self.forget(item)
        if self.limit < self.maximum:
            self._answers += 1
            if self._answers >= self.limit:
                self._answers = 0
                self.limit += 1
        self.adapting = self.limit < self.maximum or bool(self._spared)

    def timed_out(self, item: Item, sent_in: int, company: int) -> bool:
        """Note a time-out of a running item; whether it counts as an attempt.

        `sent_in` is the round in which it was sent, `company` how many others were in flight then.
        """
        in_flight = max(company + 1, len(self.running))
        if in_flight == 1:
            return True
        self.adapting = True
        if sent_in == self.round:
            self.round += 1
            self.limit = max(1, min(self.limit, in_flight) // 2)
            self._answers = 0
        return not self._spare(item.request_id)

    def forget(self, item: Item) -> None:
        """The item is finished."""
        if self._spared:
            self._spared.pop(item.request_id, None)

    def _spare(self, name: str) -> bool:
        spared = self._spared.get(name, 0)
        if spared >= _MAX_SPARED or (not spared and len(self._spared) >= _MAX_REMEMBERED):
            return False
        self._spared[name] = spared + 1
        return True
