"""A worker in a child process: restarted when it dies, stopped when its parent stops."""

import asyncio
import signal
import sys
import time
from collections.abc import Mapping, Sequence

import structlog

_MIN_PAUSE = 1.0
_MAX_PAUSE = 30.0
# A worker that ran for this long did not die because of its settings: the pause starts over.
_STABLE_AFTER = 60.0

# Exit codes after which a worker need not start again: it has done its work, or cannot do any.
_FINAL = (0, 2)

_log = structlog.get_logger("batchline.serve")


class WorkerProcess:
    """`command`: the arguments after `batchline`. It stops when its standard input is closed, which happens
    when this process ends. `lasting`: it should not end by itself, and prints nothing that is read."""

    def __init__(
        self, environment: Mapping[str, str], command: Sequence[str], *, lasting: bool = True
    ) -> None:
        self._environment = environment
        self._command = command
        self._lasting = lasting
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """First call: the worker waits for requests in flight. Second call: it stops at once."""
        # Two signals of one kind are one signal to a process that has not handled the first yet.
        number = signal.SIGINT if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def run(self) -> int:
        """Run the process until stop() is called and the process has ended. Returns its exit code."""
        pause, code = _MIN_PAUSE, 0
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set() or (not self._lasting and code in _FINAL):
                break
            if time.monotonic() - started > _STABLE_AFTER:
                pause = _MIN_PAUSE
            _log.error("the worker died; restarting it", exit_code=code, seconds=pause)
            try:
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            except TimeoutError:
                pause = min(pause * 2, _MAX_PAUSE)
        return code

    async def _run_once(self) -> int:
        """Run one process to its end. Its stdin closes when this process ends, and then it stops."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "batchline", *self._command),
            stdin=asyncio.subprocess.PIPE,
            # It prints how many items it worked on, which is not output of the server.
            stdout=asyncio.subprocess.DEVNULL if self._lasting else None,
            env=dict(self._environment),
            # Ctrl-C in a terminal signals the whole group; the worker must get only our signal.
            start_new_session=True,
        )
        if self._stopping.is_set():
            process.terminate()
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
