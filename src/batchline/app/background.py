"""A background thread with an event loop, on which blocking calls run their coroutines."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from batchline.app.runtime import new_event_loop

Returned = TypeVar("Returned")


def refuse_on_a_loop(call: str, instead: str) -> None:
    """Raises RuntimeError on a running event loop: a blocking call would stop all that runs there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"`{call}` cannot be called on a running event loop; use `{instead}`")


class Background:
    """Starts with the first call, and ends with `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, Returned]) -> Returned:
        """Run it to its end. Ctrl-C cancels it, and waits until it has ended; a second one does not wait."""
        loop = self.started()
        outcome: Future[Returned] = Future()
        tasks: list[asyncio.Task[Returned]] = []

        def start() -> None:
            task = loop.create_task(coroutine)
            tasks.append(task)
            task.add_done_callback(lambda done: _pass_on(done, outcome))

        loop.call_soon_threadsafe(start)
        try:
            return outcome.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            outcome.exception()
            raise

    def close(self) -> None:
        with self._lock:
            thread, loop = self._thread, self.loop
            self._thread = self.loop = None
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def started(self) -> asyncio.AbstractEventLoop:
        """Its loop, which runs."""
        with self._lock:
            if self.loop is None:
                self.loop = new_event_loop()
                # A daemon, because the process must be able to end if nobody closes the app.
                self._thread = threading.Thread(
                    target=_serve, args=(self.loop,), name="batchline", daemon=True
                )
                self._thread.start()
            return self.loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        # The runner ends all tasks and closes the loop.
        asyncio.set_event_loop(runner.get_loop())
        loop.run_forever()


def _pass_on(done: "asyncio.Task[Returned]", outcome: "Future[Returned]") -> None:
    if done.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
