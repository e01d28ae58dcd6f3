"""Holds items to their schemas in processes of their own, with a limit on time and memory.

Saying why an item does not fit may take exponential time in a schema that refers to itself, and no thread can
be stopped in the middle. So a child does it, which the system ends when it has used its time up. A child is
started when there is work for it, asked through its standard input, and ends when that does.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from batchline.governance.schemas import ItemFault, ItemSchema
from batchline.host import frames

MAX_SECONDS = 2.0
"""Of a processor, for the items of one request."""

_MAX_MEMORY = 2 * 1024**3
# Of two that want the processor, the one that answers requests goes first.
_NICENESS = 5
# Schemas are the operators', of whom there are few.
_CACHED = 64


class ValidationTooLong(Exception):
    """The items were not held to their schema within the limits of time and memory. For a person."""

    def __init__(self) -> None:
        super().__init__(
            f"The items cannot be checked within {MAX_SECONDS:g} s: they do not fit the schema in too many"
            " ways, or are too large for it. Submit fewer or smaller items."
        )


class _Order(msgspec.Struct, frozen=True):
    schema: bytes
    redact: tuple[str, ...]
    # As JSON.
    items: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(_Order).decode
_decode_faults = msgspec.msgpack.Decoder(list[ItemFault]).decode


class Validators:
    """Children, as many as are asked at once. May be used from any thread."""

    def __init__(self) -> None:
        self._idle: list[_ValidatorProcess] = []
        self._all: set[_ValidatorProcess] = set()
        self._lock = threading.Lock()
        self._closed = False

    def faults(self, schema: ItemSchema, items: Sequence[Any]) -> list[ItemFault]:
        """As `schema.faults`. Raises ValidationTooLong."""
        order = _Order(msgspec.json.encode(schema.schema), schema.redact, msgspec.json.encode(items))
        child = self._take()
        answer = None
        try:
            answer = child.ask(_encode(order))
        finally:
            self._give_back(child, alive=answer is not None)
        if answer is None:
            raise ValidationTooLong
        return _decode_faults(answer)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children = list(self._all)
        for child in children:
            child.end()

    def _take(self) -> "_ValidatorProcess":
        with self._lock:
            if self._closed:
                raise ValidationTooLong
            child = self._idle.pop() if self._idle else _ValidatorProcess()
            self._all.add(child)
        return child

    def _give_back(self, child: "_ValidatorProcess", *, alive: bool) -> None:
        with self._lock:
            if alive and not self._closed:
                self._idle.append(child)
                return
            self._all.discard(child)
        child.end()


class _ValidatorProcess:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "batchline.governance.validator"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, order: bytes) -> bytes | None:
        """Its answer; None if it has ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            frames.send(self._process.stdin, order)
            return frames.receive(self._process.stdout)
        except (OSError, ValueError):
            return None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                # What was not written will not be.
                with suppress(OSError):
                    stream.close()


def main() -> None:
    """In the child: one order after another, until there is nobody to give them."""
    # Ctrl-C goes to the whole group of processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    _limit_memory()
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever else is printed must not get between the answers.
    os.dup2(2, 1)
    while (order := frames.receive(sys.stdin.buffer)) is not None:
        # SIGPROF ends the process, also in the middle of a call that never comes back to Python.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        found = _faults(_decode_order(order))
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames.send(answers, _encode(found))


def _limit_memory() -> None:
    # Not everywhere where commands run, which need no children.
    import resource

    # Some systems do not let it be set.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _faults(order: _Order) -> list[ItemFault]:
    return _schema(order.schema, order.redact).faults(msgspec.json.decode(order.items))


@lru_cache(_CACHED)
def _schema(schema: bytes, redact: tuple[str, ...]) -> ItemSchema:
    return ItemSchema(msgspec.json.decode(schema), redact)


if __name__ == "__main__":
    main()
