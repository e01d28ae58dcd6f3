"""HTTP/1.1 on one connection: parses requests, passes them on one at a time, writes answers in order.

Pipelined requests wait until earlier ones are answered. No tasks are created: an immediate answer is written
inside `data_received`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol, cast

import httptools
from msgspec import Struct

from batchline.simulate.refusals import Refusal

MAX_BODY = 64 * 1024 * 1024
_MAX_KEY = 255
_MAX_WAITING = 16
_LINGER_S = 5.0

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEADS = {
    int(status): b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\n" % (status, status.phrase.encode())
    for status in HTTPStatus
}
_ANSWER = b"%b%b%bContent-Length: %d\r\n\r\n%b"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n%b\r\n"
# Always sent, because HTTP/1.0 clients keep a connection only with this header.
_KEEP_ALIVE = b"Connection: keep-alive\r\n"
_CLOSE = b"Connection: close\r\n"


class ReceivedRequest(Struct, frozen=True, gc=False):
    method: bytes
    path: bytes
    key: bytes | None
    body: bytes
    keep_alive: bool
    authorization: bytes | None = None
    content_type: bytes | None = None
    query: bytes = b""
    # The header of Anthropic's API.
    api_key: bytes | None = None


Handler = Callable[["Connection", ReceivedRequest], None]
"""Answers the request now or later, or never, or closes the connection."""


class Owner(Protocol):
    """The owner of the connections."""

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection") -> None: ...


async def stop_listening(server: asyncio.Server) -> None:
    """Close a server after every connection that it has accepted is open, so that its owner can close it.

    The event loop opens a connection two steps after it was accepted. A server that closes in between leaks
    it.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        # Only on Windows the loop has no readers.
        with suppress(NotImplementedError):
            loop.remove_reader(listening.fileno())
    for _ in range(2):
        await asyncio.sleep(0)
    server.close()


class Connection(asyncio.Protocol):
    def __init__(self, handle: Handler, owner: Owner, loop: asyncio.AbstractEventLoop) -> None:
        self.gone = False
        """The client has disconnected, or gets no more answers."""
        self._handle = handle
        self._owner = owner
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._current: ReceivedRequest | None = None
        self._waiting: deque[ReceivedRequest | Refusal] = deque()
        self._advancing = False
        self._hanging = False
        self._refused = False
        self._winding_up = False
        self._continue_due = False
        self._reading = True
        self._writable = True
        self._chunks_left: Iterator[bytes] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._begin_message()

    # --- Callbacks of the transport ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._waiting.clear()
        if self._linger is not None:
            self._linger.cancel()
        # Breaks the reference cycle with the parser, so that the garbage collector is not needed.
        del self._parser
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.gone:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The upgrade is ignored. The data after the request may be in another protocol.
            self._refused = True
            self.wind_up()
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refusal):
                raise
            self._take(error.__context__)
        except httptools.HttpParserError as error:
            self._take(Refusal(400, f"Malformed HTTP: {error}", code="malformed_http"))

    def pause_writing(self) -> None:
        self._writable = False
        self._regulate_reading()

    def resume_writing(self) -> None:
        self._writable = True
        self._regulate_reading()
        if self._chunks_left is not None:
            self._write_chunks()

    def _regulate_reading(self) -> None:
        """Pause reading if the client does not read answers, or if too many requests wait."""
        wanted = self._writable and len(self._waiting) < _MAX_WAITING
        if wanted != self._reading and not self.gone:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # --- Callbacks of the parser ---------------------------------------------------------------------------

    def _begin_message(self) -> None:
        self._url = b""
        self._key: bytes | None = None
        self._authorization: bytes | None = None
        self._content_type: bytes | None = None
        self._api_key: bytes | None = None
        self._expects_continue = False
        self._size = 0
        self._chunks: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"idempotency-key":
            self._take_key(value)
        elif name == b"content-length":
            self._check_size(int(value))
        elif name == b"content-type":
            self._content_type = value
        elif name == b"authorization":
            self._authorization = value
        elif name == b"x-api-key":
            self._api_key = value
        elif name == b"expect":
            self._expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        if self._expects_continue:
            self._continue_due = True
            self._send_continue()

    def on_body(self, chunk: bytes) -> None:
        self._size += len(chunk)
        self._check_size(self._size)
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        parser, chunks = self._parser, self._chunks
        path, _, query = self._url.partition(b"?")
        request = ReceivedRequest(
            parser.get_method(),
            path,
            self._key,
            chunks[0] if len(chunks) == 1 else b"".join(chunks),
            parser.should_keep_alive(),
            self._authorization,
            self._content_type,
            query,
            self._api_key,
        )
        self._continue_due = False
        self._begin_message()
        self._take(request)

    def _take_key(self, value: bytes) -> None:
        if len(value) > _MAX_KEY:
            raise Refusal(400, f"The Idempotency-Key is longer than {_MAX_KEY} characters.")
        self._key = value or None

    def _check_size(self, size: int) -> None:
        if size > MAX_BODY:
            raise Refusal(413, f"The body exceeds {MAX_BODY} bytes.", code="body_too_large")

    # --- One request after the other -----------------------------------------------------------------------

    def _take(self, request: ReceivedRequest | Refusal) -> None:
        if self.gone or self._hanging:
            return
        if isinstance(request, Refusal):
            self._refused = True
        if self._current is None and not self._waiting:
            self._begin(request)
        else:
            self._waiting.append(request)
            self._regulate_reading()

    def _begin(self, request: ReceivedRequest | Refusal) -> None:
        if isinstance(request, Refusal):
            self._refuse(request)
        else:
            self._current = request
            self._handle(self, request)

    def _end(self, last: bool) -> None:
        self._current = None
        if last:
            self._close()
        elif (self._waiting or self._continue_due) and not self._advancing:
            self._advance()

    def _advance(self) -> None:
        """Continue with waiting requests. In a loop, because recursion would be as deep as the pipeline."""
        self._advancing = True
        try:
            while self._waiting and self._current is None and not self.gone:
                self._begin(self._waiting.popleft())
        finally:
            self._advancing = False
        self._regulate_reading()
        self._send_continue()

    def _is_last(self) -> bool:
        assert self._current is not None, "answered twice"
        return not self._current.keep_alive or (self._winding_up and not self._waiting)

    def _send_continue(self) -> None:
        """Ask for the body when all earlier requests are answered."""
        if self._continue_due and self._current is None and not self._waiting and not self.gone:
            self._continue_due = False
            self._transport.write(_CONTINUE)

    # --- Answers -------------------------------------------------------------------------------------------

    def answer(self, status: int, body: bytes, headers: bytes = b"") -> None:
        last = self._is_last()
        self._write(status, body, headers, _CLOSE if last else _KEEP_ALIVE)
        self._end(last)

    def stream(self, content_type: bytes, chunks: Iterator[bytes], headers: bytes = b"") -> None:
        """Answer 200 with chunks, as fast as the client reads them."""
        connection = _CLOSE if self._is_last() else _KEEP_ALIVE
        self._transport.write(_STREAM_HEAD % (content_type, headers + connection))
        self._chunks_left = chunks
        self._write_chunks()

    def hang(self) -> None:
        """Never answer. Reading goes on, to notice when the client disconnects."""
        self._hanging = self._refused = True
        self._waiting.clear()
        self._regulate_reading()

    def hang_up(self) -> None:
        if not self.gone:
            self._close()

    def wind_up(self) -> None:
        """Close when all received requests are answered."""
        self._winding_up = True
        if self._hanging or self._linger is not None:
            self.abort()
        elif self._current is None and not self._waiting and not self.gone:
            self._close()

    def abort(self) -> None:
        self.gone = True
        self._transport.abort()

    def _write(self, status: int, body: bytes, headers: bytes, connection: bytes) -> None:
        self._transport.write(_ANSWER % (_HEADS[status], headers, connection, len(body), body))

    def _write_chunks(self) -> None:
        assert self._chunks_left is not None
        while self._writable and not self.gone:
            chunk = next(self._chunks_left, b"")
            self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if not chunk:
                self._chunks_left = None
                self._end(self._is_last())
                return

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the last request, then keep reading for a while: closing while the client still sends would
        reset the connection, and the client would not see the answer."""
        self._write(refusal.status, refusal.body, refusal.headers, _CLOSE)
        self._regulate_reading()
        self.gone = True
        self._transport.write_eof()
        self._linger = self._loop.call_later(_LINGER_S, self._transport.abort)

    def _close(self) -> None:
        self.gone = True
        self._transport.close()
