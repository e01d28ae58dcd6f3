"""An upstream in the event loop of a test, which notes what it is sent and answers as the test says.

It can be shut down, and started again at the same address.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

# From a request's body to a status and an answer.
Script: TypeAlias = Callable[[dict[str, Any]], Awaitable[tuple[int, dict[str, Any]]]]


async def answers(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, {"id": "1", "model": body.get("model"), "choices": []}


class NotingUpstream:
    def __init__(self, script: Script = answers) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        # Paths of requests without a body.
        self.paths: list[str] = []
        self.received = asyncio.Event()
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def lines(self) -> list[int]:
        """The numbers of the lines, as often as they were sent."""
        return [body["line"] for body in self.bodies]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and all connections, as when the process is killed."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait for what a request makes true."""
        while not fact():
            self.received.clear()
            await self.received.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            # The worker has ended, or a test has closed the connection.
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        if content:
            self.bodies.append(json.loads(content))
        else:
            self.paths.append(head[0].split()[1])
        self.received.set()
        status, answer = await self.script(self.bodies[-1] if content else {})
        body = json.dumps(answer).encode()
        writer.write(
            f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        await writer.drain()
        return True


@asynccontextmanager
async def noting(script: Script = answers) -> AsyncIterator[NotingUpstream]:
    upstream = NotingUpstream(script)
    await upstream.start()
    try:
        yield upstream
    finally:
        await upstream.stop()
