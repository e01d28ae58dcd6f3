"""Items a second, over the last few seconds."""

from collections import deque

from batchline.worker.clock import Clock

_WINDOW = 3.0


class Rate:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), 0)])
        self._count = 0

    def add(self, count: int) -> None:
        now = self._clock()
        self._marks.append((now, count))
        self._count += count
        while len(self._marks) > 2 and now - self._marks[0][0] > _WINDOW:
            self._marks.popleft()
            self._count -= self._marks[0][1]

    @property
    def per_second(self) -> float:
        elapsed = self._marks[-1][0] - self._marks[0][0]
        return self._count / elapsed if elapsed > 0 else 0.0
