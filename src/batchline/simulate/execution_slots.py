"""Slots for executions. What finds none waits for one, in the order of arrival, until the queue is full.

A refusal may come late: the request takes a slot for a while in vain, as with servers that notice only after
much work that they cannot finish it. So late refusals cost what others could have used.
"""

from collections import deque
from collections.abc import Callable

from batchline.simulate.capacity import Capacity, Timers, parsed_steps
from batchline.simulate.execution import Execution
from batchline.simulate.settings import SimulateSettings


class ExecutionSlots:
    """`run` is called with each execution that gets a slot; it calls `leave` when the execution ends."""

    def __init__(self, settings: SimulateSettings, timers: Timers, run: Callable[[Execution], None]) -> None:
        self._max_queue = settings.max_queue
        self._drops_abandoned = settings.keyless
        self._capacity = Capacity(
            settings.concurrency or None, parsed_steps(settings.capacity_steps), timers, self._fill
        )
        self._run = run
        self._queue: deque[Execution] = deque()
        self.running = 0
        # Of those that run or wait, the ones that will be refused late.
        self._refused = 0
        self._filling = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """One more would neither run nor wait."""
        if self._max_queue is None or self._capacity.requests is None:
            return False
        inside = self.running + len(self._queue) - self._refused
        return inside >= self._capacity.requests + self._max_queue

    def arrived(self) -> None:
        """Note that a request has come; the first one starts the time."""
        self._capacity.start()

    def reset(self) -> None:
        """Start the time anew at the next request. What runs or waits goes on."""
        self._capacity.reset()
        self._fill()

    def enter(self, execution: Execution) -> None:
        self._refused += execution.refused
        if self._queue or not self._free:
            self._queue.append(execution)
        else:
            self._start(execution)

    def leave(self, execution: Execution) -> None:
        self.running -= 1
        self._refused -= execution.refused
        self._fill()

    @property
    def _free(self) -> bool:
        return self._capacity.requests is None or self.running < self._capacity.requests

    def _fill(self) -> None:
        # An execution without latency ends inside `_start`: recursion would be as deep as the queue.
        if self._filling:
            return
        self._filling = True
        try:
            while self._queue and self._free:
                self._take(self._queue.popleft())
        finally:
            self._filling = False

    def _take(self, execution: Execution) -> None:
        if self._drops_abandoned and execution.abandoned:
            self._refused -= execution.refused
        else:
            self._start(execution)

    def _start(self, execution: Execution) -> None:
        self.running += 1
        self._run(execution)
