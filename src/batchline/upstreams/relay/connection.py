"""Requests to a provider's batch API: small ones, streamed uploads and streamed outputs.

Nothing is sent unless the worker still has its lease. An error says whether the request may have arrived:
that decides whether a submission may be repeated.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import msgspec
from pyreqwest.exceptions import ClientClosedError, DecodeError, TransportError
from pyreqwest.request import RequestBuilder
from pyreqwest.response import Response

from batchline.upstreams import urls
from batchline.upstreams.faults import message_of, never_left, reason_of
from batchline.upstreams.http_upstream import HttpUpstream, MissingKey, Route
from batchline.upstreams.retry import requested_delay

# Not longer than it takes until a submission without an answer is looked for.
_ANSWER_LIMIT = 60.0
_STREAM_LIMIT = 4 * 3600.0
_PIECE_LIMIT = 120.0
_PIECE = 256 * 1024
_MAX_ANSWER = 16 * 2**20
# The provider may have accepted a request that it answers so.
_UNSURE = frozenset({408, 409})
_PASSING = frozenset({408, 409, 425, 429})


class NotSent(Exception):
    """The request did not leave. The message is for a person."""


class NoAnswer(Exception):
    """The request may have arrived. The message is for a person."""


class RequestRefused(Exception):
    """The provider has answered with an error. It asks to wait `requested` seconds."""

    def __init__(self, status: int, message: str, requested: float = 0.0) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.requested = requested

    @property
    def passing(self) -> bool:
        """The same request may be answered differently next time."""
        return self.status in _PASSING or self.status >= 500

    @property
    def unsure(self) -> bool:
        """The provider may have accepted it all the same."""
        return self.status in _UNSURE or self.status >= 500


class ReadLine(msgspec.Struct, frozen=True):
    """A line of an output. `cut`: it is longer than allowed, and this is its beginning."""

    text: bytes
    cut: bool = False


class RelayConnection:
    """`fence` returns None when the worker has lost its lease."""

    def __init__(
        self,
        upstream: HttpUpstream,
        api_key_env: str | None,
        fence: Callable[[], object | None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._upstream = upstream
        self._now = now
        self._api_key_env = api_key_env
        self._fence = fence

    async def ask(
        self, method: str, path: str, *, query: str = "", body: bytes | None = None, key: str | None = None
    ) -> bytes:
        """The body of a good answer. Raises NotSent, NoAnswer or RequestRefused."""
        route = self._route(path)
        url = route.url.with_query_string(query) if query else route.url
        request = route.client.request(method, url).timeout(timedelta(seconds=_ANSWER_LIMIT))
        if body is not None:
            request = request.body_bytes(body)
        return await self._answer(route, _with_key(request, key))

    async def post_stream(
        self, path: str, content_type: str, pieces: AsyncIterator[bytes], key: str | None = None
    ) -> bytes:
        """As `ask`, with a body that is read piece by piece."""
        route = self._route(path)
        request = (
            route.client.post(route.url)
            .timeout(timedelta(seconds=_STREAM_LIMIT))
            .header("Content-Type", content_type)
            .body_stream(pieces)
        )
        return await self._answer(route, _with_key(request, key))

    async def lines(self, path: str, max_line: int) -> AsyncIterator[ReadLine]:
        """The lines of an output. Of a line that is longer than `max_line`, only its beginning is kept."""
        route = self._route(path)
        request = route.client.get(route.url).timeout(timedelta(seconds=_STREAM_LIMIT))
        async with self._opened(route, request) as response:
            if response.status != 200:
                await self._refuse(route, response)
            rest, skipping = bytearray(), False
            async for piece in _pieces(response):
                *whole, last = piece.split(b"\n")
                for part in whole:
                    if not skipping:
                        rest += part
                        if rest:
                            yield _read_line(route, rest, max_line)
                    rest, skipping = bytearray(), False
                if not skipping:
                    rest += last
                    if len(rest) > max_line:
                        yield _read_line(route, rest, max_line)
                        rest, skipping = bytearray(), True
            if rest and not skipping:
                yield _read_line(route, rest, max_line)

    def _route(self, path: str) -> Route:
        if self._fence() is None:
            raise NotSent("the worker has lost its lease")
        try:
            return self._upstream.route(path, self._api_key_env)
        except (urls.InvalidUpstream, urls.InvalidPath, MissingKey) as error:
            raise NotSent(str(error)) from None

    async def _answer(self, route: Route, request: RequestBuilder) -> bytes:
        async with self._opened(route, request) as response:
            if not 200 <= response.status < 300:
                await self._refuse(route, response)
            return await _body(response)

    @asynccontextmanager
    async def _opened(self, route: Route, request: RequestBuilder) -> AsyncIterator[Response]:
        try:
            async with request.build_streamed() as response:
                yield response
        except ClientClosedError as error:
            # It may have left before.
            raise NoAnswer("the worker stops") from error
        except (TransportError, DecodeError) as error:
            reason = route.redactor.text(reason_of(error))
            raise (NotSent if never_left(error) else NoAnswer)(reason) from error
        except TimeoutError as error:
            raise NoAnswer("the answer came too slowly") from error

    async def _refuse(self, route: Route, response: Response) -> None:
        body = route.redactor.body(await _body(response))
        delay = requested_delay(partial(_header, response), self._now())
        raise RequestRefused(response.status, message_of(response.status, body), delay)


async def _pieces(response: Response) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(_PIECE_LIMIT):
            piece = await response.body_reader.read(_PIECE)
        if piece is None:
            return
        yield piece.to_bytes()


async def _body(response: Response) -> bytes:
    found = bytearray()
    async for piece in _pieces(response):
        found += piece
        if len(found) > _MAX_ANSWER:
            raise NoAnswer(f"the answer exceeds {_MAX_ANSWER} bytes")
    return bytes(found)


def _read_line(route: Route, text: bytearray, max_line: int) -> ReadLine:
    return ReadLine(route.redactor.body(bytes(text[:max_line])), cut=len(text) > max_line)


def _with_key(request: RequestBuilder, key: str | None) -> RequestBuilder:
    return request if key is None else request.header("Idempotency-Key", key)


def _header(response: Response, name: str) -> str | None:
    try:
        return response.get_header(name)
    except ValueError:
        return None
