"""Real Batchline processes, which can be killed, frozen or limited, and are restarted when they end.

The output of each goes to its own log file. A traceback in it is a finding: no injected fault may cause one.
"""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

_PAUSE = 0.3
_STOP_LIMIT = 60.0


class Member:
    """One of the processes, across its restarts."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._command = tuple(command)
        self._variables = dict(variables or {})
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._ready_at = 0.0
        self._clock: tuple[float, float] | None = None
        self._max_bytes: int | None = None
        self._stopping = False
        self.tracebacks: list[str] = []
        self.started = 0

    def start(self) -> None:
        self._life = asyncio.create_task(self._live())

    async def stop(self) -> None:
        """Stop it gracefully, as an operator would.

        If it does not stop in time, kill it: that is a finding.
        """
        self._stopping = True
        assert self._life is not None
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_LIMIT):
                await asyncio.shield(self._life)
        except TimeoutError:
            self.tracebacks.append(f"{self.name} did not stop within {_STOP_LIMIT:g} s of SIGTERM")
            self._signal(signal.SIGKILL)
            await self._life

    def kill(self, away: float, clock: tuple[float, float] | None = None) -> bool:
        """Kill it (SIGKILL), and restart it after `away` seconds, with a shifted clock if one is given."""
        self._ready_at = asyncio.get_running_loop().time() + away
        self._clock = clock
        return self._signal(signal.SIGKILL)

    def freeze(self) -> bool:
        return self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def heal(self) -> None:
        self._ready_at = 0.0
        self.thaw()
        self.limit_files(None)

    def limit_files(self, max_bytes: int | None) -> None:
        """Limit the size of its files, so that writes fail half-way, as on a full disk. None: no limit."""
        self._max_bytes = max_bytes
        if self._process is not None and self._process.returncode is None:
            _limit(self._process.pid, max_bytes)

    def _signal(self, number: signal.Signals) -> bool:
        process = self._process
        if process is None or process.returncode is not None:
            return False
        # It may just have ended by itself.
        with suppress(ProcessLookupError):
            process.send_signal(number)
            return True
        return False

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            if (wait := self._ready_at - loop.time()) > 0:
                await asyncio.sleep(min(wait, _PAUSE))
                continue
            await self._one_life()
            if not self._stopping:
                await asyncio.sleep(_PAUSE)

    async def _one_life(self) -> None:
        run = ["batchline"]
        if self._clock is not None:
            run = ["chaos.shifted", *(str(figure) for figure in self._clock)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BATCHLINE_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *run,
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**kept, **self._variables},
        )
        self._process = process
        self.started += 1
        if self._max_bytes is not None:
            _limit(process.pid, self._max_bytes)
        if self._stopping:
            process.terminate()
        assert process.stderr is not None
        await self._listen(process.stderr, process.pid)
        await process.wait()

    async def _listen(self, said: asyncio.StreamReader, pid: int) -> None:
        with self._log.open("ab") as log:
            async for line in said:
                log.write(b"%d %b" % (pid, line))
                log.flush()
                if b"Traceback" in line:
                    self.tracebacks.append(
                        f"{self.name} (pid {pid}) failed with a traceback: see {self._log.name}"
                    )


def _limit(pid: int, max_bytes: int | None) -> None:
    """Limit the process and its children. A child that starts meanwhile inherits the limit."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        children = psutil.Process(pid).children(recursive=True)
        for one in (pid, *(child.pid for child in children)):
            _, hard = resource.prlimit(one, resource.RLIMIT_FSIZE)
            resource.prlimit(one, resource.RLIMIT_FSIZE, (hard if max_bytes is None else max_bytes, hard))
