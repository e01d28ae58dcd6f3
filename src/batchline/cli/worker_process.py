"""A worker in a process of its own, started again when it dies, stopped when its server stops."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

import structlog

_MIN_PAUSE = 1.0
_MAX_PAUSE = 30.0
# One that lived this long did not die of how it was started.
_LIVED = 60.0
# Of two that want the processor, the one that answers requests goes first (the comparison `polling`).
_NICER = 5

_log = structlog.get_logger("batchline.serve")


class WorkerProcess:
    def __init__(self, environment: Mapping[str, str], *, verbose: bool = False) -> None:
        self._environment = environment
        self._options = ("--verbose",) if verbose else ()
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """First call: it finishes what it has sent. Second call: it leaves at once."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def run(self) -> None:
        """Until stopped, and until the process has ended."""
        pause = _MIN_PAUSE
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._live()
            if self._stopping.is_set():
                return
            if time.monotonic() - started > _LIVED:
                pause = _MIN_PAUSE
            _log.error("the worker has died and is started again", exit_code=code, seconds=pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                pause = min(pause * 2, _MAX_PAUSE)

    async def _live(self) -> int:
        """One process from start to end. Its stdin ends with us, however we end, and it with that."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "batchline", *self._options, "worker", "--until-eof"),
            stdin=asyncio.subprocess.PIPE,
            # Its last word, how many items it worked on, is not the server's.
            stdout=asyncio.subprocess.DEVNULL,
            env=dict(self._environment),
            # Ctrl-C in a terminal goes to the whole group; the worker is told by us, once.
            start_new_session=True,
        )
        # Threads that it starts later are of its own niceness, and it has not started any yet.
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, min(ours + _NICER, 19))
        if self._stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
