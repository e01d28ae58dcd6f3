"""Which processes belong to a cluster.

Every process of the server shows its `cluster_name` in its command line, the postmaster as an argument, the
others in their title. Command lines are open to everyone; the working folder would say the same, but root in
a container may not look at another user's (it lacks CAP_SYS_PTRACE). A zombie's is empty, so a killed
postmaster that nobody reaps does not count as alive.
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
    """Whether `pid` is a process of the cluster; a foreign process that was given its pid is not."""
    try:
        return _belongs(psutil.Process(pid), cluster_name)
    except psutil.NoSuchProcess:
        return False


def end_leftovers(cluster_name: str) -> None:
    """Ends what a killed postmaster left running, as it would itself after a crash: SIGQUIT, then SIGKILL.

    A backend in a long computation does not notice that its postmaster is gone, and no new server starts
    while it lives.
    """
    leftovers = [process for process in psutil.process_iter() if _belongs(process, cluster_name)]
    patient_until = time.monotonic() + _PATIENCE_SECONDS
    # One that hangs in the kernel, on a disk that does not answer, outlives even SIGKILL.
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
