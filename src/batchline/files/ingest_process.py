"""Ingests files in child processes, so that the event loop of the server stays responsive.

A child ends at once when its standard input does, also in the middle of a file. PostgreSQL then rolls back
what the child has copied.
"""

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeAlias
from uuid import UUID

import msgspec

from batchline.files.ingest import InputUnreadable, StoredFile, TooLate, UploadEnded, ingest_stored
from batchline.files.objects import Objects, ObjectStoreUnavailable
from batchline.files.parsing import ReadingRules
from batchline.host.subprocesses import Subprocesses, begin_child, receive, send
from batchline.model import File
from batchline.store.idempotency import IdempotencyConflict
from batchline.store.session import (
    StatementRefused,
    StorageQuotaExceeded,
    StoreFull,
    StoreUnavailable,
    TenantClosed,
)

# Enough for a database with two cores.
_CHILDREN = 2


class IngestRequest(msgspec.Struct, frozen=True):
    url: str
    objects: str
    stored: StoredFile
    rules: ReadingRules


class _Recorded(msgspec.Struct, frozen=True, tag="recorded"):
    file: File


class _Before(msgspec.Struct, frozen=True, tag="before"):
    object_id: UUID
    same: bool


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    """`kind` is the name of the exception."""

    kind: str
    message: str


_Answer: TypeAlias = _Recorded | _Before | _Refused
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        TooLate,
        UploadEnded,
        StatementRefused,
        StorageQuotaExceeded,
        TenantClosed,
        StoreUnavailable,
        StoreFull,
        ObjectStoreUnavailable,
    )
}

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(IngestRequest).decode
_answers: "msgspec.msgpack.Decoder[_Answer]" = msgspec.msgpack.Decoder(_Answer)


class ChildLost(StoreUnavailable):
    """The process that ingested a file has ended. The file may or may not be recorded."""


class Ingesters:
    """A few children, each of which ingests one file at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_CHILDREN, "ingest")
        self._processes = Subprocesses("batchline.files.ingest_process")

    async def ingest(self, url: str, objects: Objects, stored: StoredFile, rules: ReadingRules) -> File:
        """As `ingest_stored`, in another process."""
        request = _encode(IngestRequest(url, objects.location, stored, rules))
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._processes.ask, request)
        if answer is None:
            raise ChildLost("the process that ingested the file has ended")
        match _answers.decode(answer):
            case _Recorded(file):
                return file
            case _Before(object_id, same):
                raise IdempotencyConflict(object_id, same)
            case _Refused(kind, message):
                raise _KINDS.get(kind, ChildLost)(message)

    async def close(self) -> None:
        """End the children, including busy ones."""
        self._processes.close()
        await asyncio.to_thread(self._threads.shutdown)

    @property
    def process_ids(self) -> list[int]:
        return self._processes.process_ids


def main() -> None:
    """The child: ingest files until the standard input ends."""
    answers = begin_child()
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        request = _decode_request(requests.get())
        send(answers, _encode(asyncio.run(_answer(request))))


def _listen(requests: SimpleQueue[bytes]) -> None:
    while (request := receive(sys.stdin.buffer)) is not None:
        requests.put(request)
    # The parent is gone, so a file in progress is abandoned.
    os._exit(0)


async def _answer(request: IngestRequest) -> _Answer:
    try:
        # Inside `try`: an object store that is unavailable is reported, and does not end the child.
        content = Objects.at(request.objects).read(request.stored.object_key)
        return _Recorded(await ingest_stored(request.url, request.stored, content, request.rules))
    except IdempotencyConflict as before:
        return _Before(before.object_id, before.same)
    except InputUnreadable as error:
        return _Refused(ObjectStoreUnavailable.__name__, str(error))
    except tuple(_KINDS.values()) as error:
        kinds = (kind for kind in type(error).__mro__ if kind.__name__ in _KINDS)
        return _Refused(next(kinds).__name__, str(error))


if __name__ == "__main__":
    main()
