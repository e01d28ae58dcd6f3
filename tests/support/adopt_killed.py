"""Runs one phase of an adoption in a process of its own, and kills it when it reaches a step.

    python -m tests.support.adopt_killed URL PHASE STEP

Steps are small, so that there are many.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from batchline.adopt import copying, phases
from batchline.store.adoption.records import CutoverSettings
from batchline.store.session import Session

SETTINGS = CutoverSettings("default", False, None, 86_400.0)


class Killed:
    """Kills its own process at a step."""

    def __init__(self, step: str) -> None:
        self._step = step

    async def reached(self, point: str, amount: int) -> None:
        if point == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


async def run(url: str, phase: str, step: str) -> None:
    killed = Killed(step)
    async with Session(url, "adopt") as session:
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "prepare": lambda: phases.prepare(session, "public", steps=killed),
            "cutover": lambda: phases.cut_over(session, SETTINGS, steps=killed),
            "rollback": lambda: phases.roll_back(session, steps=killed),
            "finish": lambda: phases.finish(session, steps=killed),
        }
        await acts[phase]()


if __name__ == "__main__":
    vars(copying)["LINES_PER_STEP"] = 15
    asyncio.run(run(sys.argv[1], sys.argv[2], sys.argv[3]))
