"""uvicorn with limits that its options do not offer: on the size and time of request heads, on bodies that
arrive after a refusal, and on data that clients do not read. The caller handles signals.

tests/api/test_attacks.py and tests/api/test_slow_readers_block_nobody_else.py fail without the subclass.
"""

import asyncio
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchline.api import limits

# Bytes of the request line and all headers. The parser itself has no limit.
MAX_HEAD = 64 * 1024
_HEAD_WITHIN = 30.0
# The time limit in api/limits.py comes first, because it is logged.
_LONGER = 5.0
# Seconds that running requests get when the server stops.
_GRACE = 30

_REFUSAL = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
_REFUSAL += b"x-content-type-options: nosniff\r\n\r\n"


class LimitedHttp(HttpToolsProtocol):
    """A connection with limits on heads, unread bodies and unread answers."""

    _head: int | None = 0
    _late: asyncio.TimerHandle | None = None
    _body_complete = True
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._end_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_read()

    def resume_writing(self) -> None:
        self._end_read()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # Closing waits for data that the client has not read.
        if self.transport.get_write_buffer_size():
            self._expect_read()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        self._body_complete = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._body_complete = True
        self._end_head()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._body_complete and not self.transport.is_closing():
            # The request was refused before its body was read. The rest is dropped, and must end in time.
            self._late = self.loop.call_later(limits.BODY_WITHIN, self.transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is None or self.transport.is_closing():
            return
        # Only the head counts. At most one read beyond the limit is kept.
        self._head += len(data)
        if self._head > MAX_HEAD:
            self._refuse(
                b"431 Request Header Fields Too Large", b"The request line and headers have more than 64 KiB."
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", b"The request is not valid HTTP.")

    def _expect_head(self) -> None:
        self._end_head()
        self._head = 0
        self._late = self.loop.call_later(_HEAD_WITHIN, self._too_late)

    def _end_head(self) -> None:
        self._head = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _expect_read(self) -> None:
        """Abort the connection if the client does not read in time, even after the answer has ended."""
        self._end_read()
        self._stuck = self.loop.call_later(limits.TAKEN_WITHIN + _LONGER, self.transport.abort)

    def _end_read(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _too_late(self) -> None:
        self._refuse(b"408 Request Timeout", b"The request line and headers did not arrive in time.")

    def _refuse(self, status: bytes, message: bytes) -> None:
        if self.transport.is_closing():
            return
        body = b'{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":null}}' % message
        self.transport.write(_REFUSAL % (status, len(body)) + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Runs an application on a listening socket until `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        *,
        on_stop: Callable[[], None] | None = None,
        **settings: Any,
    ) -> None:
        """`on_stop` ends answers that would not end by themselves."""
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedHttp,
                ws="none",
                # `AccessLog` logs neither headers nor queries, which may contain keys.
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE,
                **settings,
            )
        )
        self._listening = listening
        self._on_stop = on_stop

    async def run_until_stopped(self) -> None:
        await self.serve(sockets=[self._listening])

    def stop(self) -> None:
        """First call: finish running requests. Second call: abort them."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self._on_stop is not None:
            self._on_stop()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the caller, who must stop the worker, too."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)
