"""uvicorn as we run it: it leaves signals to its owner, takes no endless or endlessly slow heads, and keeps
nothing without end for clients that do not read."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchline.api import limits

# The request line and all headers. The parser itself would keep any amount.
MAX_HEAD = 64 * 1024
_HEAD_WITHIN = 30.0
# Longer than an answer waits itself (api/limits.py), which then says so in the log.
_LONGER = 5.0
# What is under way when the server is told to stop may take this long.
_GRACE = 30

_REFUSAL = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"


class LimitedHttp(HttpToolsProtocol):
    """A connection whose requests must say what they want in few bytes and soon."""

    _head: int | None = 0
    _late: asyncio.TimerHandle | None = None
    _body_is_here = True
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        self._is_taken()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_taken()

    def resume_writing(self) -> None:
        self._is_taken()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits for what is not taken yet.
        if self.transport.get_write_buffer_size():
            self._expect_taken()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        self._body_is_here = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._body_is_here = True
        self._head_is_here()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._body_is_here and not self.transport.is_closing():
            # It was refused before it was read. What still comes is not kept, and not waited for without end.
            self._late = self.loop.call_later(limits.BODY_WITHIN, self.transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is None or self.transport.is_closing():
            return
        # Only what has not become a request yet counts, so one read more than the limit at most is kept.
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._refuse(b"431 Request Header Fields Too Large", b"The request's headers are too large.")

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", b"This is not HTTP.")

    def _expect_head(self) -> None:
        self._head_is_here()
        self._head = 0
        self._late = self.loop.call_later(_HEAD_WITHIN, self._too_late)

    def _head_is_here(self) -> None:
        self._head = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _expect_taken(self) -> None:
        """What the client does not take in time is dropped, with the connection: also after its answer has
        ended or was given up, when only the connection keeps it."""
        self._is_taken()
        self._stuck = self.loop.call_later(limits.TAKEN_WITHIN + _LONGER, self.transport.abort)

    def _is_taken(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _too_late(self) -> None:
        self._refuse(b"408 Request Timeout", b"The request's headers did not come in time.")

    def _refuse(self, status: bytes, message: bytes) -> None:
        if self.transport.is_closing():
            return
        body = b'{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":null}}' % message
        self.transport.write(_REFUSAL % (status, len(body)) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Runs an application on a listening socket until told to stop."""

    def __init__(self, app: FastAPI, listening: socket.socket, **settings: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedHttp,
                ws="none",
                # Ours says neither headers nor queries, which may hold keys.
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
                **settings,
            )
        )
        self._listening = listening

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._listening])

    def stop(self) -> None:
        """First call: finish what is under way. Second call: leave it."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on. Raises OSError where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)
