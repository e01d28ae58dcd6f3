"""Child processes that answer requests on their standard streams. A message is a length and that many bytes.

Children start on demand. They end when their standard input does, and so with their parent, even if that is
killed.
"""

import os
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

_LENGTH = struct.Struct(">I")
# A parent that answers clients has priority.
_NICENESS = 5


class Subprocesses:
    """Children that run one module, as many as there are concurrent calls. May be used from any thread."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._idle: list[subprocess.Popen[bytes]] = []
        self._all: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: bytes) -> bytes | None:
        """The answer of a child; None if the child has ended instead, or after `close`."""
        with self._lock:
            if self._closed:
                return None
            child = self._idle.pop() if self._idle else self._start()
            self._all.add(child)
        answer = None
        try:
            answer = _answer(child, request)
        finally:
            self._give_back(child, alive=answer is not None)
        return answer

    def close(self) -> None:
        """End all children, including busy ones."""
        with self._lock:
            self._closed = True
            children = list(self._all)
        for child in children:
            _end(child)

    @property
    def process_ids(self) -> list[int]:
        with self._lock:
            return [child.pid for child in self._all]

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: a file of the current folder must not replace a module.
        command = [sys.executable, "-P", "-m", self._module]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _give_back(self, child: subprocess.Popen[bytes], *, alive: bool) -> None:
        with self._lock:
            if alive and not self._closed:
                self._idle.append(child)
                return
            self._all.discard(child)
        _end(child)


def begin_child(*, nice: bool = True) -> IO[bytes]:
    """In a child: set up the process, and return the stream for answers.

    `nice`: the parent has priority.
    """
    # Ctrl-C goes to all processes of the group; the parent decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if nice:
        os.nice(_NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    # Other output must not mix with the answers.
    os.dup2(2, 1)
    return answers


def send(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    message = stream.read(length)
    return message if len(message) == length else None


def _answer(child: subprocess.Popen[bytes], request: bytes) -> bytes | None:
    assert child.stdin is not None
    assert child.stdout is not None
    # ValueError: `close` has closed the streams.
    with suppress(OSError, ValueError):
        send(child.stdin, request)
        return receive(child.stdout)
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            # Unwritten data is lost with the child.
            with suppress(OSError):
                stream.close()
