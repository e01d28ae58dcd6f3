"""An HTTP server in the test's own event loop that answers, byte for byte, what a test tells it to."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

from batchline.simulate.http import stop_listening

ANSWER = {
    "id": "chatcmpl-1",
    "choices": [{"message": {"content": "Grüße 🎉"}}],
    "usage": {
        "prompt_tokens": 12,
        "completion_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 7},
    },
}
Behaviour = Callable[[asyncio.Transport], None]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Upstream:
    """Does to the nth request what the nth behaviour says; the last one stands for all that follow."""

    behaviours: list[Behaviour]
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    connections: list[asyncio.Transport] = field(default_factory=list)
    accepted: int = 0

    def take(self, transport: asyncio.Transport, request: Request) -> None:
        behaviour = self.behaviours[min(len(self.requests), len(self.behaviours) - 1)]
        self.requests.append(request)
        self.arrived.set()
        behaviour(transport)


class Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._upstream.connections.append(self._transport)
        self._upstream.accepted += 1

    def connection_lost(self, exc: Exception | None) -> None:
        # To abort a connection that is lost already may fail.
        self._upstream.connections.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        if found and len(rest) >= size:
            self._received = b""
            method, path, _ = first.split(" ")
            self._upstream.take(self._transport, Request(method, path, headers, rest[:size]))


@asynccontextmanager
async def upstream_that(*behaviours: Behaviour, sock: socket.socket | None = None) -> AsyncIterator[Upstream]:
    upstream = Upstream(list(behaviours))
    loop = asyncio.get_running_loop()
    if sock is None:
        sock, _ = an_upstream_that_refuses()
    server = await loop.create_server(lambda: Connection(upstream), sock=sock)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        await stop_listening(server)
        while upstream.connections:
            for transport in list(upstream.connections):
                transport.abort()
            await asyncio.sleep(0)
        await server.wait_closed()


def hangs(_transport: asyncio.Transport) -> None:
    """Say nothing, and keep the connection."""


def says(message: bytes) -> Behaviour:
    return lambda transport: transport.write(message)


def says_and_closes(message: bytes) -> Behaviour:
    def behave(transport: asyncio.Transport) -> None:
        transport.write(message)
        transport.close()

    return behave


def says_and_resets(message: bytes) -> Behaviour:
    def behave(transport: asyncio.Transport) -> None:
        transport.write(message)
        no_linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
        transport.abort()

    return behave


def http(status: int, body: bytes = b"", *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d Whatever" % status, *headers]
    if status != 204:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def answers(status: int, body: bytes = b"", *headers: bytes) -> Behaviour:
    return says(http(status, body, *headers))


answers_well = answers(200, json.dumps(ANSWER, ensure_ascii=False).encode(), b"x-request-id: req_7")
CUT_SHORT = http(200, json.dumps(ANSWER).encode())[:-10]


def an_upstream_that_refuses() -> tuple[socket.socket, str]:
    """A port that is taken, so that nobody else gets it, and not listened on."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken, f"http://127.0.0.1:{taken.getsockname()[1]}"
