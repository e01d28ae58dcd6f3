"""Description of the machine and the software versions."""

import os
import platform
import statistics
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import psutil

_PACKAGES = ("batchline", "psycopg", "pyreqwest", "uvloop", "msgspec", "obstore")


def describe(scratch: Path) -> dict[str, str]:
    return {
        "system": f"{platform.system()} {platform.release()}",
        "CPU": _cpu(),
        "cores": str(len(psutil.Process().cpu_affinity() or ()) or psutil.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before the run": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "one fsync of 8 KiB": f"{1000 * statistics.median(_fsyncs(scratch)):.2f} ms",
    }


def versions() -> dict[str, str]:
    return {"Python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _fsyncs(scratch: Path) -> Iterator[float]:
    """Seconds per durable write, which every commit waits for."""
    path = scratch / "fsync"
    with path.open("wb") as file:
        for _ in range(50):
            begun = perf_counter()
            file.write(bytes(8192))
            file.flush()
            os.fsync(file.fileno())
            yield perf_counter() - begun
    path.unlink()
