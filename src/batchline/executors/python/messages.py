"""Messages between a worker and its child processes: a length and MessagePack, on a pair of sockets.

Items and results pass as JSON, as they are stored, so their types need not be pickled.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from batchline.executors.python.outcome import Outcome
from batchline.model import Item, RunSettings
from batchline.operations.options import OperationOptions

LENGTH_BYTES = 4
_NO_SETTINGS = RunSettings()


class ChildSetup(msgspec.Struct, frozen=True):
    """What a child runs. `main_name` or `main_path`: the program, if the function is defined there."""

    operation: str
    module: str
    qualname: str
    options: OperationOptions
    path: list[str]
    arguments: list[str]
    main_name: str | None = None
    main_path: str | None = None


class ChildReady(msgspec.Struct, frozen=True, tag="ready"):
    pass


class ChildRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The function cannot be imported."""

    message: str


class ForwardedLog(msgspec.Struct, frozen=True, tag="log"):
    """A line for the worker's log, which alone knows where logs go and how they look."""

    level: str
    event: str
    fields: dict[str, Any]


class CallAnswer(msgspec.Struct, frozen=True, tag="answer"):
    outcomes: list[Outcome]


ChildMessage: TypeAlias = ChildReady | ChildRefused | ForwardedLog | CallAnswer

encode = msgspec.msgpack.Encoder().encode
decode_setup = msgspec.msgpack.Decoder(ChildSetup).decode
decode_items = msgspec.msgpack.Decoder(list[Item]).decode
_messages: "msgspec.msgpack.Decoder[ChildMessage]" = msgspec.msgpack.Decoder(ChildMessage)


def decode_message(data: bytes) -> ChildMessage:
    return _messages.decode(data)


def framed(message: bytes) -> bytes:
    """As host.subprocesses.receive reads it."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def encode_items(items: Sequence[Item]) -> bytes:
    """Items without what only the worker needs."""
    return encode(
        [replace(item, claim=replace(item.claim, settings=_NO_SETTINGS), trace=None) for item in items]
    )
