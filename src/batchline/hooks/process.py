"""Runs one hook in a process of its own, within a time limit, and keeps the end of what it writes.

A process, not a thread: a thread cannot be ended, and shares the worker's secrets. The hook leads a process
group, which is killed when the hook has ended or its time is up, with whatever it has started. The content
comes from a file and the output goes into a pipe of our own, so to wait for the process never means to wait
for a descendant that has left the group.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile

from batchline.hooks.hook import Hook
from batchline.secrets.masking import masked_text
from batchline.store.hooks import HookOutcome

# How much of the output is kept: its end, where errors are.
KEPT = 4096
_BLOCK = 65_536
# More output than this is read slowly, so that a flood costs the worker little.
_FREE = 2**20
_PAUSE = 0.01
# For output that is on its way when the hook has ended.
_LAST_OUTPUT = 1.0
# Blocks that a pipe may still hold then. A descendant may go on writing, so they are limited.
_MAX_REST = 16


async def run_hook(
    hook: Hook, content: bytes, *, timeout: float, environment: Mapping[str, str]
) -> HookOutcome:
    """Run the hook to its end, with the content on its standard input. It has succeeded with exit code 0."""
    receiving, sending = os.pipe()
    try:
        with TemporaryFile() as stdin:
            stdin.write(content)
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *hook.command,
                stdin=stdin,
                stdout=sending,
                stderr=sending,
                env=dict(environment),
                start_new_session=True,
            )
    except OSError as error:
        os.close(receiving)
        return HookOutcome(False, f"it could not be started: {(error.strerror or str(error)).lower()}")
    except BaseException:
        os.close(receiving)
        raise
    finally:
        os.close(sending)
    output = _Output()
    reading = asyncio.create_task(output.read(receiving))
    try:
        why = await _ended(process, timeout)
        await asyncio.wait([reading], timeout=_LAST_OUTPUT)
    finally:
        reading.cancel()
        await asyncio.wait([reading])
    return HookOutcome(why is None, why, output.text())


async def _ended(process: asyncio.subprocess.Process, timeout: float) -> str | None:
    """Wait for the end; why it is not a success."""
    in_time = True
    try:
        async with asyncio.timeout(timeout):
            await process.wait()
    except TimeoutError:
        in_time = False
    finally:
        # Also what the hook has left behind.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await process.wait()
    if not in_time:
        return f"it did not end within {timeout:g} s and was killed"
    if code < 0:
        return f"signal {_name(-code)} ended it"
    return None if code == 0 else f"it ended with exit code {code}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class _Output:
    """The last bytes of a stream that may be endless."""

    def __init__(self) -> None:
        self._last = b""
        self._received = 0

    async def read(self, descriptor: int) -> None:
        """Read to the end, and close the descriptor. Not through a transport: uvloop's closes it twice, and
        by the second time it may belong to another file."""
        os.set_blocking(descriptor, False)
        try:
            while block := await _next_block(descriptor):
                self._received += len(block)
                self._last = (self._last + block)[-KEPT:]
                if self._received > _FREE:
                    await asyncio.sleep(_PAUSE)
        finally:
            self._read_rest(descriptor)
            os.close(descriptor)

    def _read_rest(self, descriptor: int) -> None:
        """What the pipe still holds: a worker that was stopped for a moment has not read it yet."""
        with suppress(BlockingIOError):
            for _ in range(_MAX_REST):
                if not (block := os.read(descriptor, _BLOCK)):
                    return
                self._last = (self._last + block)[-KEPT:]

    def text(self) -> str:
        """As the database stores it: without NUL, and without secrets that can be recognized."""
        return masked_text(self._last.decode(errors="replace").replace("\0", "�"))


async def _next_block(descriptor: int) -> bytes:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        while True:
            await readable.wait()
            readable.clear()
            with suppress(BlockingIOError):
                return os.read(descriptor, _BLOCK)
    finally:
        loop.remove_reader(descriptor)
