"""`batchline worker` in a process that kills itself with SIGKILL at one step of a provider's item.

python -m tests.support.killed_worker STEP NTH worker --database …
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from batchline.cli.main import main
from batchline.executors.http import HttpExecutor
from batchline.model import Completed, Settled, Verdict
from batchline.store import spans
from batchline.store.session import Session

# In the order in which a provider's item passes them.
STEPS = (
    "claimed",
    "before the submission",
    "while it is submitted",
    "submitted",
    "before it is parked",
    "parked",
    "before it is asked for",
    "collected",
    "before it is settled",
    "settled",
)
# Of a batch that runs in steps: its last line is settled, and the next step has not begun.
STEP_ENDED = "step ended"
# A submission is on its way for this long, in seconds: less than the provider takes to accept it.
_ON_ITS_WAY = 0.1


class Killer:
    """Kills this process when a step is reached for the nth time."""

    def __init__(self, step: str, nth: int) -> None:
        assert step in (*STEPS, STEP_ENDED)
        self._step = step
        self._left = nth

    def at(self, step: str, delay: float = 0.0) -> None:
        if step != self._step:
            return
        self._left -= 1
        if self._left == 0:
            asyncio.get_running_loop().call_later(delay, die) if delay else die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(killer: Killer) -> None:
    claim, park, settle, exchange = spans.claim, spans.park, spans.settle, HttpExecutor.exchange

    async def claim_then(*args: Any) -> Any:
        found = await claim(*args)
        if found:
            killer.at("claimed")
        return found

    async def park_between(session: Session, worker_id: UUID, tasks: Sequence[spans.ParkedTask]) -> Any:
        killer.at("before it is parked")
        rows = await park(session, worker_id, tasks)
        killer.at("parked")
        return rows

    async def settle_between(
        session: Session, worker_id: UUID, verdicts: Sequence[Verdict], *more: Any
    ) -> list[Settled]:
        ends = any(isinstance(verdict, Completed) for verdict in verdicts)
        if ends:
            killer.at("before it is settled")
        settled = await settle(session, worker_id, verdicts, *more)
        if ends:
            killer.at("settled")
        if any(row.step_ended for row in settled):
            killer.at(STEP_ENDED)
        return settled

    async def exchanged(answer: Coroutine[Any, Any, Any], asks: bool) -> Any:
        if asks:
            killer.at("before it is asked for")
        else:
            killer.at("before the submission")
            killer.at("while it is submitted", _ON_ITS_WAY)
        answered = await answer
        killer.at("collected" if asks else "submitted")
        return answered

    def exchange_between(self: HttpExecutor, item: Any, build: Callable[..., Any]) -> Any:
        assert isinstance(build, partial)
        return exchanged(exchange(self, item, build), asks=build.func.__name__ == "_get")

    spans.claim, spans.park, spans.settle = claim_then, park_between, settle_between  # type: ignore[assignment]
    HttpExecutor.exchange = exchange_between  # type: ignore[method-assign]


if __name__ == "__main__":
    _, step, nth, *arguments = sys.argv
    install(Killer(step, int(nth)))
    sys.argv = ["batchline", *arguments]
    main()
