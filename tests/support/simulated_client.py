"""A bare HTTP client for the simulated upstream."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
DEADLINE_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection, on which each side's bytes can be sent and awaited apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        if headers.get("transfer-encoding") == "chunked":
            body = await self._chunks()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return Answer(int(head[0].split()[1]), headers, body)

    async def _chunks(self) -> bytes:
        chunks = []
        while size := int(await self.reader.readline(), 16):
            chunks.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
        await self.reader.readexactly(2)
        return b"".join(chunks)

    async def closed_by_server(self) -> bool:
        return await self.reader.read() == b""

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Upstream:
    """A running simulator, as its callers see it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._clients: list[Client] = []

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(self.host, self.port))
        self._clients.append(client)
        return client

    async def post(self, body: bytes, *, key: str | None = None, path: str = CHAT) -> Answer:
        client = await self.connect()
        client.send(request(body, key=key, path=path))
        try:
            return await client.answer()
        finally:
            await client.close()

    async def get(self, path: str, method: str = "GET") -> Answer:
        client = await self.connect()
        client.send(f"{method} {path} HTTP/1.1\r\nHost: sim\r\n\r\n".encode())
        try:
            return await client.answer()
        finally:
            await client.close()

    async def stats(self) -> Any:
        return (await self.get("/stats")).json

    async def until(self, fact: Callable[[Any], bool]) -> Any:
        """Ask for the stats until they show the fact."""
        async with asyncio.timeout(DEADLINE_S):
            while not fact(stats := await self.stats()):
                pass
        return stats

    async def until_received(self, requests: int) -> Any:
        return await self.until(lambda stats: stats["requests"] == requests)

    async def close_clients(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()


def request(body: bytes, *, key: str | None = None, path: str = CHAT) -> bytes:
    keyed = f"Idempotency-Key: {key}\r\n" if key else ""
    head = f"POST {path} HTTP/1.1\r\nHost: sim\r\n{keyed}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chat(text: str = "hi", **fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def run(test: Coroutine[Any, Any, None]) -> None:
    """On the loop that `batchline simulate` has."""
    factory = None
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(test, 2 * DEADLINE_S))
