"""python -m chaos.shifted SECONDS RATE COMMAND…: `batchline COMMAND…` on a machine whose clocks are wrong.

The wall clock is off by SECONDS, and the steady one runs RATE times as fast as it should. Python's clocks are
replaced before anything of Batchline is imported, so whatever it takes from them is wrong. `datetime.now`
reads the system's clock by itself and stays right; no decision of Batchline's depends on it, and logs keep
their order.
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
