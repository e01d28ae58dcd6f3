"""A listening address that can be closed and opened again, as by a server that restarts."""

import asyncio
import socket

from batchline.simulate.http import Connection, Handler, Owner, stop_listening


class ReopenedAddress:
    """Keeps its port while it is closed: then connections to it are refused."""

    def __init__(self, handle: Handler, owner: Owner) -> None:
        self._handle = handle
        self._owner = owner
        # Bound and never listened on, so that nobody else gets the port.
        self._kept = _bound(0)
        self._server: asyncio.Server | None = None
        self._closing: list[asyncio.Server] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def _port(self) -> int:
        port: int = self._kept.getsockname()[1]
        return port

    async def open(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Connection(self._handle, self._owner, loop), sock=_bound(self._port), backlog=1024
            )

    async def close(self) -> None:
        """Accept nothing more. Connections stay open."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening(server)
            self._closing.append(server)

    async def free(self) -> None:
        """Give up the port. Call it after all connections were closed."""
        for server in self._closing:
            await server.wait_closed()
        self._kept.close()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound
