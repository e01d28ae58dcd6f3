"""Child processes that each run a worker of an app: started again if they die, or when the code changes."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from batchline.cli.display.console import err
from batchline.cli.options import Exit
from batchline.cli.worker_process import WorkerProcess

_LOOK_EVERY = 1.0
# Folders with code of others.
_IGNORED = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"))


class AppProcesses:
    """The processes of one start, each with its arguments."""

    def __init__(self, arguments: Sequence[Sequence[str]]) -> None:
        self._arguments = arguments
        self._processes: list[WorkerProcess] = []

    def again(self) -> "AppProcesses":
        return AppProcesses(self._arguments)

    def stop(self) -> None:
        """First call: finish what runs. Second call: stop at once."""
        for process in self._processes:
            process.stop()

    async def run(self) -> int:
        """Until all have ended. Returns the highest exit code."""
        self._processes = [
            WorkerProcess(os.environ, command=command, lasting=False) for command in self._arguments
        ]
        codes = await asyncio.gather(*(process.run() for process in self._processes))
        return max(codes)

    async def run_with_signals(self) -> int:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, self.stop)
        return await self.run()


async def run_reloading(fleet: AppProcesses) -> int:
    """Start the processes again whenever a `.py` file below the working folder changes, until a signal."""
    stopped = asyncio.Event()
    current = fleet

    def stop() -> None:
        stopped.set()
        current.stop()

    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, stop)
    while True:
        before = await asyncio.to_thread(_changes)
        running = asyncio.create_task(current.run())
        changed = asyncio.create_task(_until_changed(before))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([changed, stopping], return_when=asyncio.FIRST_COMPLETED)
        if changed.done():
            err().print("code has changed; starting again", markup=False)
        for task in (changed, stopping):
            task.cancel()
        current.stop()
        code = await running
        if stopped.is_set():
            return code if code != Exit.BAD_INPUT else Exit.OK
        current = current.again()


async def _until_changed(before: dict[Path, float]) -> None:
    while await asyncio.to_thread(_changes) == before:  # noqa: ASYNC110 (a file has no event)
        await asyncio.sleep(_LOOK_EVERY)


def _changes() -> dict[Path, float]:
    """When each file of code was changed."""
    found = {}
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name not in _IGNORED]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and path.exists():
                found[path] = path.stat().st_mtime
    return found
