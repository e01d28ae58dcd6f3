"""A TCP proxy in front of a server's socket that can fail as networks do.

Cut: both sides see a reset. Delayed: every piece of data arrives later, in order. Half-open: no data passes,
and neither side notices, not even when the other one closes. At the end of the fault the client sees a reset;
the server notices nothing until the proxy forgets the connection, as if its client's machine were gone. A
deaf proxy accepts new connections and leaves them half-open too.
"""

import asyncio
import socket
import struct
from contextlib import suppress
from pathlib import Path

from batchline.simulate.http import stop_listening

_PIECE = 64 * 1024
_RESET = struct.pack("ii", 1, 0)


class Link:
    """One connection through the proxy, from its client to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client = (reader, writer)
        self.server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.half_open = False
        self.over = asyncio.Event()

    def reset(self) -> None:
        self.over.set()
        for side in (self.client, self.server):
            if side is not None:
                _reset(side[1])


class Proxy:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._links: set[Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.delay = 0.0
        self.deaf = False

    @property
    def links(self) -> int:
        return len(self._links)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        serving = tuple(self._serving)
        while not all(task.done() for task in serving):
            self.cut()
            self.forget()
            await asyncio.sleep(0)
        await asyncio.gather(*serving)
        await self._server.wait_closed()

    def cut(self) -> int:
        """Reset all connections except half-open ones. Return their number."""
        links = [link for link in self._links if not link.half_open]
        for link in links:
            link.reset()
        return len(links)

    def open_half(self, deaf: bool = False) -> int:
        """Make all current connections half-open. Return their number."""
        self.deaf = deaf
        links = [link for link in self._links if not link.half_open]
        for link in links:
            link.half_open = True
        return len(links)

    def heal(self) -> None:
        self.delay = 0.0
        self.deaf = False
        for link in list(self._links):
            if link.half_open:
                _reset(link.client[1])

    def forget(self) -> None:
        """Close half-open connections towards the server."""
        for link in list(self._links):
            if link.half_open:
                link.reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        link.half_open = self.deaf
        self._links.add(link)
        try:
            if link.half_open:
                await link.over.wait()
            else:
                await self._join(link)
        finally:
            self._links.discard(link)
            link.reset()

    async def _join(self, link: Link) -> None:
        try:
            link.server = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            return  # The server is down: the client sees a reset, as without a proxy.
        pumps = [
            asyncio.create_task(self._pump(link, link.client[0], link.server[1])),
            asyncio.create_task(self._pump(link, link.server[0], link.client[1])),
        ]
        ended = asyncio.create_task(link.over.wait())
        try:
            await asyncio.wait([*pumps, ended], return_when=asyncio.FIRST_COMPLETED)
            if link.half_open:
                await ended
        finally:
            for task in (*pumps, ended):
                task.cancel()
            await asyncio.wait([*pumps, ended])

    async def _pump(self, link: Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        # A closed side ends the link, whatever the reason.
        with suppress(OSError):
            while data := await source.read(_PIECE):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if link.half_open:
                    continue
                sink.write(data)
                await sink.drain()
        if link.half_open:
            await link.over.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with suppress(OSError, ValueError):
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
