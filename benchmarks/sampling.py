"""CPU profile of a process: its stack, sampled every few milliseconds of CPU that it uses.

Waiting is not counted, so a busy machine changes nothing. A sample belongs to a *role*, the outermost module
of the worker on the stack, which is the running task; and to a *location*, the innermost module of Batchline
on it, with the library that it calls, if any.
"""

import signal
from collections import Counter
from types import FrameType, TracebackType
from typing import NamedTuple, Self

_EVERY = 0.001
_OURS = "batchline."
_LOOP = "the event loop"


class Spot(NamedTuple):
    role: str
    location: str
    library: str


class Sampler:
    """Samples the main thread while its context is active."""

    def __init__(self) -> None:
        self.spots: Counter[Spot] = Counter()

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _look(self, number: int, frame: FrameType | None) -> None:
        self.spots[spot(_modules(frame))] += 1


def _modules(frame: FrameType | None) -> list[str]:
    """The modules on the stack, innermost first."""
    modules = []
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return modules


def spot(modules: list[str]) -> Spot:
    ours = [module.removeprefix(_OURS) for module in modules if module.startswith(_OURS)]
    if not ours:
        return Spot(_LOOP, "", "")
    # The main program is the benchmark itself.
    innermost = modules[0].replace("__main__", "benchmarks").partition(".")[0]
    return Spot(ours[-1], ours[0], "" if innermost == "batchline" else innermost)
