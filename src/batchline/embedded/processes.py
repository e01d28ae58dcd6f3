"""Find the processes of a cluster.

Every process of the server has the `cluster_name` in its command line: the postmaster as an argument, the
others in their title. Every user can read command lines. The working folder would work too, but root in a
container cannot read that of another user's process (it lacks CAP_SYS_PTRACE). The command line of a zombie
is empty, so a killed postmaster that was not reaped does not count as alive.
"""

import re
import signal
import time
from contextlib import suppress

import psutil

_PATIENCE_SECONDS = 5
_ABANDON_SECONDS = 30
_POLL_SECONDS = 0.02


def runs(pid: int, cluster_name: str) -> bool:
    """Whether `pid` is a process of the cluster, and not an unrelated one that reuses the pid."""
    try:
        return _belongs(psutil.Process(pid), cluster_name)
    except psutil.NoSuchProcess:
        return False


def end_leftovers(cluster_name: str) -> None:
    """End the processes that a killed postmaster left, as a postmaster does: SIGQUIT, then SIGKILL.

    A backend in a long computation does not notice that its postmaster is gone, and no new server can start
    while it runs.
    """
    leftovers = [process for process in psutil.process_iter() if _belongs(process, cluster_name)]
    patient_until = time.monotonic() + _PATIENCE_SECONDS
    # A process that hangs in the kernel, on a disk that does not respond, survives even SIGKILL.
    while leftovers and time.monotonic() < patient_until + _ABANDON_SECONDS:
        for process in leftovers:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGQUIT if time.monotonic() < patient_until else signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
        leftovers = [process for process in leftovers if _belongs(process, cluster_name)]


def _belongs(process: psutil.Process, cluster_name: str) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        # Whole words only: batchline-fe00-12 is not batchline-fe00-123.
        return process.name() == "postgres" and any(
            cluster_name in re.split("[=: ]", argument) for argument in process.cmdline()
        )
    return False
