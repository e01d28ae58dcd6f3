"""Items per second, over the last few seconds."""

from collections import deque

from batchline.worker.clock import Clock

_WINDOW = 3.0
_MARK_EVERY = 0.05


class Rate:
    """Whoever finishes an item adds to `count`. The clock is read only when the rate is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])
        self.count = 0

    @property
    def per_second(self) -> float:
        now = self._clock()
        marks = self._marks
        if now - marks[-1][0] >= _MARK_EVERY:
            marks.append((now, self.count))
        while len(marks) > 1 and now - marks[1][0] > _WINDOW:
            marks.popleft()
        since, before = marks[0]
        return (self.count - before) / (now - since) if now > since else 0.0
