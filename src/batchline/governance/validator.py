"""Checks items against schemas in child processes, with limits on time and memory.

Finding the errors of an item may take exponential time if a schema refers to itself, and a thread cannot be
stopped. The operating system ends a child that has used up its time. Children start on demand, get requests
on their standard input, and end with it.
"""

import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from batchline.governance.schemas import ItemFault, ItemSchema
from batchline.host.subprocesses import Subprocesses, begin_child, receive, send

MAX_SECONDS = 2.0
"""CPU time for the items of one request."""

_MAX_MEMORY = 2 * 1024**3
# Schemas come from the settings, so there are few.
_CACHED = 64


class ValidationTooLong(Exception):
    """The check exceeded its limits of time or memory. The message is for a person."""

    def __init__(self) -> None:
        super().__init__(
            f"The items cannot be checked within {MAX_SECONDS:g} s: they are too large, or violate the schema"
            " in too many ways. Submit fewer or smaller items."
        )


class _CheckRequest(msgspec.Struct, frozen=True):
    schema: bytes
    redact: tuple[str, ...]
    # As JSON.
    items: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_CheckRequest).decode
_decode_faults = msgspec.msgpack.Decoder(list[ItemFault]).decode


class Validators:
    """Checks items in child processes. May be used from any thread."""

    def __init__(self) -> None:
        self._processes = Subprocesses("batchline.governance.validator")

    def faults(self, schema: ItemSchema, items: Sequence[Any]) -> list[ItemFault]:
        """As `schema.faults`. Raises ValidationTooLong."""
        request = _CheckRequest(msgspec.json.encode(schema.schema), schema.redact, msgspec.json.encode(items))
        answer = self._processes.ask(_encode(request))
        if answer is None:
            raise ValidationTooLong
        return _decode_faults(answer)

    def close(self) -> None:
        self._processes.close()


def main() -> None:
    """The child: answer requests until the standard input ends."""
    answers = begin_child()
    _limit_memory()
    while (request := receive(sys.stdin.buffer)) is not None:
        # SIGPROF ends the process even inside a call that never returns to Python.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        found = _faults(_decode_request(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(answers, _encode(found))


def _limit_memory() -> None:
    # Does not exist on Windows, where commands work without children.
    import resource

    # Some systems refuse to set it.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _faults(request: _CheckRequest) -> list[ItemFault]:
    return _schema(request.schema, request.redact).faults(msgspec.json.decode(request.items))


@lru_cache(_CACHED)
def _schema(schema: bytes, redact: tuple[str, ...]) -> ItemSchema:
    return ItemSchema(msgspec.json.decode(schema), redact)


if __name__ == "__main__":
    main()
