"""A proxy that loses answers: it passes a request on, and closes the connection when the answer comes."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

_HEAD = re.compile(rb"(GET|POST|DELETE) (\S+) HTTP/1\.1\r\n")


class LossyProxy:
    """`lose` says for which request the next answer is lost."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._pattern: re.Pattern[str] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.lost: list[str] = []
        self.url = ""

    def lose(self, pattern: str) -> None:
        """Lose the answer to the next request such as `POST /v1/batches`."""
        self._pattern = re.compile(pattern)

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        answers, to = await asyncio.open_connection(self._host, self._port)
        losing = asyncio.Event()
        sending = asyncio.create_task(self._requests(reader, to, losing))
        try:
            while piece := await answers.read(65536):
                if losing.is_set():
                    break
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            sending.cancel()
            for each in (writer, to):
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    async def _requests(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                for method, path in _HEAD.findall(piece):
                    line = f"{method.decode()} {path.decode()}"
                    if self._pattern is not None and self._pattern.fullmatch(line):
                        self._pattern = None
                        self.lost.append(line)
                        losing.set()
                to.write(piece)
                await to.drain()


@asynccontextmanager
async def lossy_proxy(target: str) -> AsyncIterator[LossyProxy]:
    proxy = LossyProxy(target)
    server = await proxy.serve()
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
