"""A child process: calls one function, with one item or chunk at a time, as its worker asks.

    python -P -m batchline.executors.python.child SOCKET PARENT

It ends at once when its worker does, also in the middle of a call: a thread reads the socket, and on Linux
the kernel kills the child even if a call holds the interpreter.
"""

import asyncio
import multiprocessing
import multiprocessing.spawn
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial, reduce
from importlib import import_module
from queue import SimpleQueue
from typing import Any, cast

import structlog

from batchline.executors.python.calls import HandlerCall
from batchline.executors.python.messages import (
    CallAnswer,
    ChildMessage,
    ChildReady,
    ChildRefused,
    ChildSetup,
    ForwardedLog,
    decode_items,
    decode_setup,
    encode,
)
from batchline.executors.python.outcome import Outcome, message_of
from batchline.host.subprocesses import receive, send
from batchline.operations.operation import AnyOperation, PythonOperation, operation_with

_PR_SET_PDEATHSIG = 1


class _Worker:
    """The connection with the worker. Any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._incoming, self._outgoing = connection.makefile("rb"), connection.makefile("wb")
        self._lock = threading.Lock()
        self._requests: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._listen, name="worker", daemon=True).start()

    def next_request(self) -> bytes:
        return self._requests.get()

    def send(self, message: ChildMessage) -> None:
        with self._lock:
            send(self._outgoing, encode(message))

    def _listen(self) -> None:
        while (request := receive(self._incoming)) is not None:
            self._requests.put(request)
        # The worker is gone, so nobody waits for a call that runs.
        os._exit(0)


class _NoStages:
    """A child knows only its own function. The worker checks what is emitted by name."""

    def find(self, name: str) -> None:
        return None


def main() -> None:
    descriptor, parent = map(int, sys.argv[1:])
    _end_with(parent)
    _leave_signals_to_worker()
    worker = _Worker(socket.socket(fileno=descriptor))
    _forward_logs(worker)
    try:
        call = _caller(_operation(decode_setup(worker.next_request())))
    except BaseException as error:  # noqa: BLE001
        # The module is the user's, and may raise anything.
        worker.send(ChildRefused(f"{type(error).__name__}: {message_of(error)}"))
        return
    worker.send(ChildReady())
    while True:
        answer = CallAnswer(call(worker.next_request()))
        _flush()
        worker.send(answer)


def _caller(operation: AnyOperation) -> Callable[[bytes], list[Outcome]]:
    """Answers a request."""
    runner = asyncio.Runner() if operation.is_async else None

    def call(request: bytes) -> list[Outcome]:
        called = HandlerCall(operation, decode_items(request), _NoStages())
        return called.run() if runner is None else runner.run(called.run_async())

    return call


def _operation(setup: ChildSetup) -> AnyOperation:
    """The operation as in the worker, with the function as it is here."""
    sys.path[:] = setup.path
    sys.argv[:] = setup.arguments
    with _importing():
        if setup.main_name is not None:
            multiprocessing.spawn.prepare({"init_main_from_name": setup.main_name})
        elif setup.main_path is not None:
            multiprocessing.spawn.prepare({"init_main_from_path": setup.main_path})
        module: Any = import_module(setup.module)
        found = reduce(getattr, setup.qualname.split("."), module)
    function = found.function if isinstance(found, PythonOperation) else found
    return operation_with(function, setup.operation, setup.options)


@contextmanager
def _importing() -> Iterator[None]:
    """Mark the process as multiprocessing does: a program without `if __name__ == "__main__"` would start
    all its work again. `check_not_importing` looks at this."""
    process = cast(Any, multiprocessing.current_process())
    process._inheriting = True
    try:
        yield
    finally:
        del process._inheriting


def _end_with(parent: int) -> None:
    """Let the kernel kill this process with its parent."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _leave_signals_to_worker() -> None:
    """SIGINT and SIGTERM may be sent to all processes; the worker decides when to end.

    By a handler that does nothing, and not by SIG_IGN, which programs that the function starts would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
        os.register_at_fork(after_in_child=partial(signal.signal, number, signal.SIG_DFL))


def _forward_logs(worker: _Worker) -> None:
    def forward(_logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        text = _utf8(str(event.pop("event", "")))
        if event.pop("exc_info", None) and (error := sys.exc_info()[1]) is not None:
            event["exception"] = _traceback(error)
        fields = {_utf8(str(name)): _plain(value) for name, value in event.items()}
        worker.send(ForwardedLog(level, text, fields))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, forward])


def _traceback(error: BaseException) -> str:
    from batchline.secrets.tracebacks import traceback_of

    return traceback_of(error)


def _plain(value: Any) -> Any:
    """The value as MessagePack has it: not of a subclass, and no integer of more than 64 bits."""
    if value is None or type(value) in (bool, float):
        return value
    return value if type(value) is int and -(2**63) <= value < 2**63 else _utf8(str(value))


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _flush() -> None:
    """The worker may kill this process at any time after an answer, which loses what is buffered."""
    for stream in (sys.stdout, sys.stderr):
        # The function may have closed or replaced it.
        with suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main()
