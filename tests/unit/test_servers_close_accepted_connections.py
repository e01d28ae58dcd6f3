"""A connection that was accepted just before a server stops is closed like the others."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from batchline.simulate.server import Simulator
from batchline.simulate.settings import SimulateSettings
from chaos.proxy import Proxy
from tests.support.scripted_upstream import hangs, upstream_that

Address = tuple[str, int]


@asynccontextmanager
async def simulator(_folder: Path) -> AsyncIterator[Address]:
    server = Simulator(SimulateSettings(port=0))
    yield await server.start()
    await server.stop()


@asynccontextmanager
async def scripted(_folder: Path) -> AsyncIterator[Address]:
    async with upstream_that(hangs) as upstream:
        url = urlsplit(upstream.url)
        assert url.hostname
        assert url.port
        yield url.hostname, url.port


@asynccontextmanager
async def proxy(folder: Path) -> AsyncIterator[Address]:
    server = Proxy(folder / "nobody listens here")
    await server.start()
    yield "127.0.0.1", server.port
    await server.stop()


@pytest.mark.parametrize("serve", [simulator, scripted, proxy])
@pytest.mark.parametrize("steps", range(6))
async def test_a_connection_accepted_before_the_stop_is_closed(
    serve: Callable[[Path], AbstractAsyncContextManager[Address]], steps: int, tmp_path: Path
) -> None:
    with socket.socket() as client:
        async with serve(tmp_path) as address:
            client.connect(address)
            for _ in range(steps):
                await asyncio.sleep(0)
        client.settimeout(30)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
