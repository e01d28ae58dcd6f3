"""Ingests in processes of their own, so that the event loop which takes files in stays quick.

A child is started when there is work for it, asked through its standard input, and answers on its standard
output. It ends when its input does: so with its parent, however that ends, and in the middle of a file too;
the database then forgets what it has copied.
"""

import asyncio
import os
import signal
import subprocess
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
from batchline.host import frames
from batchline.model import File
from batchline.store.idempotency import IdempotencyConflict
from batchline.store.session import StatementRefused, StoreFull, StoreUnavailable

# Two keep a database of two cores busy.
_CHILDREN = 2
# Of two that want the processor, the one that answers requests goes first.
_NICENESS = 5


class IngestOrder(msgspec.Struct, frozen=True):
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
    """`kind` names the exception."""

    kind: str
    message: str


_Answer: TypeAlias = _Recorded | _Before | _Refused
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (TooLate, UploadEnded, StatementRefused, StoreUnavailable, StoreFull, ObjectStoreUnavailable)
}

_encode = msgspec.msgpack.Encoder().encode
_decode_order = msgspec.msgpack.Decoder(IngestOrder).decode
_answers: "msgspec.msgpack.Decoder[_Answer]" = msgspec.msgpack.Decoder(_Answer)


class ChildLost(StoreUnavailable):
    """The process that took a file in has ended. Whether the file was recorded is not known."""


class Ingesters:
    """A few children, each of which works on one file at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_CHILDREN, "ingest")
        self._idle: list[_IngestProcess] = []
        self._lock = threading.Lock()
        self._all: set[_IngestProcess] = set()
        self._closed = False

    async def ingest(self, url: str, objects: Objects, stored: StoredFile, rules: ReadingRules) -> File:
        """As `ingest_stored` in this process."""
        order = IngestOrder(url, objects.location, stored, rules)
        match await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, order):
            case _Recorded(file):
                return file
            case _Before(object_id, same):
                raise IdempotencyConflict(object_id, same)
            case _Refused(kind, message):
                raise _KINDS.get(kind, ChildLost)(message)

    async def close(self) -> None:
        """End the children, whatever they are at."""
        with self._lock:
            self._closed = True
            children = list(self._all)
        for child in children:
            child.end()
        await asyncio.to_thread(self._threads.shutdown)

    @property
    def process_ids(self) -> list[int]:
        with self._lock:
            return [child.pid for child in self._all]

    def _ask(self, order: IngestOrder) -> _Answer:
        with self._lock:
            if self._closed:
                raise ChildLost("the server is stopping")
            child = self._idle.pop() if self._idle else _IngestProcess()
            self._all.add(child)
        try:
            answer = child.ask(order)
        except BaseException:
            with self._lock:
                self._all.discard(child)
            child.end()
            raise
        with self._lock:
            self._idle.append(child)
        return answer


class _IngestProcess:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "batchline.files.ingest_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid

    def ask(self, order: IngestOrder) -> _Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            frames.send(self._process.stdin, _encode(order))
            answer = frames.receive(self._process.stdout)
        except (OSError, ValueError) as error:
            raise ChildLost(f"the process that took a file in is gone: {error}") from error
        if answer is None:
            raise ChildLost("the process that took a file in has ended")
        return _answers.decode(answer)

    def end(self) -> None:
        """Also from another thread while it is asked, which then hears that the child is gone."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                try:
                    stream.close()
                except OSError:
                    continue  # What was not written will not be.


def main() -> None:
    """In the child: one order after another, until there is nobody to give them."""
    # Ctrl-C goes to the whole group of processes; the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    answers = os.fdopen(os.dup(1), "wb")
    # Whatever else is printed must not get between the answers.
    os.dup2(2, 1)
    orders: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order = _decode_order(orders.get())
        frames.send(answers, _encode(asyncio.run(_answer(order))))


def _listen(orders: SimpleQueue[bytes]) -> None:
    while (order := frames.receive(sys.stdin.buffer)) is not None:
        orders.put(order)
    # At once, also if there is a file under way: nobody waits for it any more.
    os._exit(0)


async def _answer(order: IngestOrder) -> _Answer:
    try:
        # In here too: an object store that is away is something to be told, not to die of.
        content = Objects.at(order.objects).read(order.stored.object_key)
        return _Recorded(await ingest_stored(order.url, order.stored, content, order.rules))
    except IdempotencyConflict as before:
        return _Before(before.object_id, before.same)
    except InputUnreadable as error:
        return _Refused(ObjectStoreUnavailable.__name__, str(error))
    except tuple(_KINDS.values()) as error:
        kinds = (kind for kind in type(error).__mro__ if kind.__name__ in _KINDS)
        return _Refused(next(kinds).__name__, str(error))


if __name__ == "__main__":
    main()
