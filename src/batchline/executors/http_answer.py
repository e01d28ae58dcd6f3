"""Answers of upstreams, and how their bodies are read.

A body takes memory from a budget while it is read. What takes long to do with it is done in threads, so that
it does not block the event loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec
from pyreqwest.bytes import Bytes
from pyreqwest.response import Response

from batchline.model import Item
from batchline.upstreams.http_upstream import Route
from batchline.upstreams.memory import STEP, BodyMemory, Share

MAX_ON_LOOP = 64 * 1024
"""Up to this size an answer is checked on the event loop, in less than 10 ms even if it must be mended."""

_RETRYABLE = frozenset({408, 409, 425, 429})
# Larger answers wait for one of these threads.
_THREADS = 2

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """An upstream's answer, from `send` without the API key that it may quote. It asks to wait `requested`
    seconds."""

    status: int
    body: bytes
    request_id: str
    requested: float = 0.0
    # When the request was sent, by the clock of the upstreams.
    started: float = 0.0

    @property
    def passing(self) -> bool:
        """The same request may be answered differently next time."""
        return self.status in _RETRYABLE or self.status >= 500


class AnswerTooLarge(Exception):
    """The answer is longer than `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The upstream's answer exceeds {limit} bytes.")


class AnswerStalled(Exception):
    """The answer comes so slowly that it would hold its memory for too long."""

    def __init__(self, received: int, seconds: float) -> None:
        super().__init__(
            f"The upstream's answer came too slowly: after {received} bytes, the next MiB took more than"
            f" {seconds:g} s."
        )


class AnswerReader:
    """A body that is large may not take longer than `piece_timeout` seconds for each MiB."""

    def __init__(self, memory: BodyMemory, piece_timeout: float) -> None:
        self._memory = memory
        self._piece_timeout = piece_timeout
        self._threads = ThreadPoolExecutor(_THREADS, "answers")

    async def read(self, response: Response, share: Share, limit: int) -> bytes:
        """The whole body. A small one is read at once; a longer one waits for memory as it comes."""
        reader, small = response.body_reader, min(self._memory.small, limit)
        piece = await reader.read(small + 1)
        if piece is None or len(piece) <= small:
            return b"" if piece is None else piece.to_bytes()
        pieces, size = [piece], len(piece)
        await share.grow(size)
        while size <= limit:
            step = min(STEP, limit + 1 - size)
            await share.grow(step)
            try:
                async with asyncio.timeout(self._piece_timeout):
                    piece = await reader.read(step)
            except TimeoutError:
                raise AnswerStalled(size, self._piece_timeout) from None
            if piece is None:
                return await self.beside(size, partial(_joined, pieces))
            pieces.append(piece)
            size += len(piece)
        raise AnswerTooLarge(limit)

    async def beside(self, size: int, act: Callable[[], T]) -> T:
        """The result of `act` on so many bytes. It takes long for many, and then runs in a thread."""
        if size <= MAX_ON_LOOP:
            return act()
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)


def _joined(pieces: list[Bytes]) -> bytes:
    """The whole body. Empties the list: to free many pieces takes long, too."""
    body = b"".join(pieces)
    pieces.clear()
    return body


def redacted(item: Item, route: Route, answer: Answer) -> Answer:
    return Answer(answer.status, route.redactor.body(answer.body), answer.request_id, answer.requested)


def request_id(item: Item, route: Route, response: Response) -> str:
    """What the upstream calls the request, or what we called it."""
    said = header_of(response, "x-request-id")
    return route.redactor.text(said) if said else item.idempotency_key


def header_of(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:
        # Not text: as good as absent.
        return None
