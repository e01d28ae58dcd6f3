"""Workers of this machine: which of them are known to be dead.

Across machines only the end of a lease shows that a worker is dead. Among processes of one machine there is
no need to wait: a worker that starts looks which of the others are gone, so a run that was killed continues
at once when it is started again. A name is `host:pid@machine/birth`; `machine` changes with every boot and
differs between containers, and `birth` distinguishes a process from a later one with the same number.
"""

import os
import socket
import sys
from functools import cache
from pathlib import Path

import psutil

from batchline.store import spans
from batchline.store.session import Session


def name_of_this_process() -> str:
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}@{_machine()}/{_birth(pid)}"


async def expire_dead_local_workers(session: Session) -> int:
    """End the leases of this machine's workers whose process is gone; how many there were."""
    dead = [worker_id for worker_id, name in await spans.live_workers(session) if _is_dead(name)]
    for worker_id in dead:
        await spans.expire(session, worker_id)
    return len(dead)


def _is_dead(name: str) -> bool:
    owner, _, rest = name.rpartition("@")
    machine, _, birth = rest.rpartition("/")
    pid = owner.rpartition(":")[2]
    return machine == _machine() and pid.isdigit() and _birth(int(pid)) != birth


def _birth(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return "dead"
        if sys.platform == "linux":
            return _start_ticks(pid)
        return str(round(process.create_time() * 100))
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return "dead"


def _start_ticks(pid: int) -> str:
    """Clock ticks from the boot to the start of the process. The time of day would not do: psutil adds the
    boot time, which the kernel derives from the clock, so it differs when the clock was set meanwhile."""
    # The name, in parentheses, may contain spaces. The start is the 22nd field, and the state the 3rd.
    return Path("/proc", str(pid), "stat").read_text(errors="replace").rpartition(")")[2].split()[22 - 3]


@cache
def _machine() -> str:
    """The scope in which a process number is unique: one boot of one container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot[:18]}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}-{round(psutil.boot_time())}"
