"""Run a command with wrong clocks: `python -m chaos.shifted SECONDS RATE COMMAND…` runs `batchline COMMAND…`.

The wall clock is off by SECONDS, and the steady clock runs at RATE times its speed. Python's clocks are
replaced before Batchline is imported, so all of it sees the wrong time. `datetime.now` reads the system's
clock directly and stays correct: no decision of Batchline depends on it, and logs keep their order.
"""

import sys
import time
from collections.abc import Callable

_STEADY = [
    getattr(time, name)
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW")
    if hasattr(time, name)
]


def shift(seconds: float, rate: float) -> None:
    wall, wall_ns, steady, of = time.time, time.time_ns, time.monotonic, time.clock_gettime

    def clock_gettime(clock: int) -> float:
        if clock in _STEADY:
            return of(clock) * rate
        return of(clock) + (seconds if clock == time.CLOCK_REALTIME else 0.0)

    replaced: dict[str, Callable[..., float]] = {
        "time": lambda: wall() + seconds,
        "time_ns": lambda: wall_ns() + int(seconds * 1e9),
        "monotonic": lambda: steady() * rate,
        "clock_gettime": clock_gettime,
    }
    for name, clock in replaced.items():
        setattr(time, name, clock)


def main() -> None:
    seconds, rate, *command = sys.argv[1:]
    shift(float(seconds), float(rate))
    from batchline.cli.main import main as batchline

    sys.argv = ["batchline", *command]
    batchline()


if __name__ == "__main__":
    main()
