"""Lines whose failure was the upstream's, not theirs: how often each was tried again without an attempt.

A refusal (429, 503) while others are answered says that the upstream is busy. A gateway error after others
says that its backend is away. Neither is an attempt. No line is spared more than a few times, so one that is
always refused still ends.
"""

from batchline.model import Item

_MAX_TIMES = 8
# Of more lines, the oldest are forgotten: most of them have ended elsewhere.
_MAX_LINES = 10_000


class SparedLines:
    def __init__(self) -> None:
        # How often, by the line's permanent id.
        self.times: dict[str, int] = {}

    def spare(self, item: Item) -> int:
        """Which time it is for this line, from 1; 0: the failure counts."""
        name = item.request_id
        times = self.times.get(name, 0)
        if times >= _MAX_TIMES:
            return 0
        if not times and len(self.times) >= _MAX_LINES:
            del self.times[next(iter(self.times))]
        self.times[name] = times + 1
        return times + 1

    def forget(self, item: Item) -> None:
        """The line has ended."""
        self.times.pop(item.request_id, None)
