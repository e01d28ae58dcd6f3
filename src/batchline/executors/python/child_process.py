"""A child process, as its worker sees it.

A thread waits for its end. So the end is noticed even if a process that the child has forked keeps the socket
open, and on any event loop. The child leads a process group, which is killed with it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec
import structlog

from batchline.executors.python.messages import (
    LENGTH_BYTES,
    CallAnswer,
    ChildMessage,
    ChildRefused,
    ChildSetup,
    ForwardedLog,
    decode_message,
    encode,
    framed,
)
from batchline.executors.python.outcome import Outcome

_MODULE = "batchline.executors.python.child"
# For the import of the function: some libraries take long.
_MAX_START = 300.0
# For what is on its way when the process has ended.
_LAST_MESSAGE = 1.0
_MAX_END = 5.0

_log = structlog.get_logger("batchline.handlers")


class ProcessNotStarted(Exception):
    """The child cannot run the function. The message is for a person."""


class FunctionNotImported(ProcessNotStarted):
    """The module raises there, or has no such function. Another process would fail alike."""


class ChildProcess:
    """Call `start` first. After `kill`, or when it has ended by itself, it answers nothing."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._lock = threading.Lock()
        self._reaped = False
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, setup: ChildSetup) -> None:
        """Raises ProcessNotStarted."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._open(theirs)
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
        except OSError as error:
            ours.close()
            self.ended.set()
            raise ProcessNotStarted(f"The process cannot be started: {error.strerror or error}.") from error
        except BaseException:
            ours.close()
            raise
        try:
            async with asyncio.timeout(_MAX_START):
                answer = await self._exchange(encode(setup))
        except TimeoutError:
            raise ProcessNotStarted(f"The function was not imported within {_MAX_START:g} s.") from None
        if isinstance(answer, ChildRefused):
            raise FunctionNotImported(f"The process cannot import the function: {answer.message}")
        if answer is None:
            raise ProcessNotStarted(f"While the process imported the function, {await self.why_ended()}.")

    async def call(self, request: bytes) -> list[Outcome] | None:
        """The outcomes of a call; None: the process has ended instead."""
        answer = await self._exchange(request)
        return answer.outcomes if isinstance(answer, CallAnswer) else None

    def kill(self) -> None:
        """Kill it with all that it has started. It ends soon."""
        with self._lock:
            if self._process is not None and not self._reaped:
                _kill_group(self._process.pid)

    async def why_ended(self) -> str:
        """How the process has ended, as part of a sentence."""
        await self._wait(_LAST_MESSAGE)
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "it closed its connection"
        return f"signal {_signal_name(-code)} ended it" if code < 0 else f"it ended with exit code {code}"

    async def close(self) -> None:
        """Kill it, and wait for its end."""
        self.kill()
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
        await self._wait(_MAX_END)

    # --- Messages ------------------------------------------------------------------------------------------

    async def _exchange(self, request: bytes) -> ChildMessage | None:
        assert self._writer is not None
        try:
            self._writer.write(framed(request))
            await self._writer.drain()
            while isinstance(message := await self._receive(), ForwardedLog):
                # It says what its level is, not where it comes from.
                getattr(_log, message.level, _log.info)(message.event, **message.fields)
            return message
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
            return None

    async def _receive(self) -> ChildMessage:
        assert self._reader is not None
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        return decode_message(await self._reader.readexactly(length))

    # --- Its end -------------------------------------------------------------------------------------------

    def _open(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        # -P: a file of the current folder must not replace a module. In this thread: on Linux a child dies
        # with the thread that has started it.
        command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), str(os.getpid())]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
        )
        threading.Thread(target=self._watch, args=(process,), name="child", daemon=True).start()
        return process

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        if hasattr(os, "waitid"):
            # Not reaped yet, so its number is still that of its group.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                _kill_group(process.pid)
                process.wait()
                self._reaped = True
        else:
            process.wait()
            self._reaped = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._note_end)

    def _note_end(self) -> None:
        self.ended.set()
        # By then its last message was read. A descendant may keep the connection open for ever.
        if self._writer is not None:
            self._loop.call_later(_LAST_MESSAGE, self._writer.transport.abort)

    async def _wait(self, limit: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self.ended.wait()


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
