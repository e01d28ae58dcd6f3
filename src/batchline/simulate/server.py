"""The simulated upstream as a server: in this process's loop, or as a process of its own."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from batchline.simulate.http import Connection, Handler
from batchline.simulate.routes import Routes
from batchline.simulate.settings import SimulateSettings
from batchline.simulate.upstream import SimulatedUpstream

_BACKLOG = 4096
_OPEN_FILES = 65_536


# Makes what answers requests, once the loop that it will run in is known.
HandlerFactory = Callable[[asyncio.AbstractEventLoop], Handler]


class Simulator:
    """Answers as an OpenAI-compatible upstream, or with other `routes` where they are given."""

    def __init__(self, settings: SimulateSettings, routes: HandlerFactory | None = None) -> None:
        self._settings = settings
        self._routes = routes or self._upstream
        self._connections: set[Connection] = set()
        self._deserted = asyncio.Event()
        self._deserted.set()
        self._stopping = False

    async def start(self) -> tuple[str, int]:
        """Listen, and say where."""
        loop = asyncio.get_running_loop()
        handle = self._routes(loop)
        self._server = await loop.create_server(
            lambda: Connection(handle, self, loop),
            self._settings.host,
            self._settings.port,
            backlog=_BACKLOG,
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def _upstream(self, loop: asyncio.AbstractEventLoop) -> Handler:
        return Routes(self._settings, SimulatedUpstream(self._settings, loop)).handle

    async def stop(self, grace_s: float = 5.0) -> None:
        """Take no more requests, answer those under way, and after the grace hang up on the rest."""
        self._stopping = True
        self._server.close()
        for connection in tuple(self._connections):
            connection.wind_up()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._deserted.wait(), grace_s)
        for connection in tuple(self._connections):
            connection.abort()
        await self._deserted.wait()
        await self._server.wait_closed()

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._deserted.clear()
        if self._stopping:
            connection.wind_up()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._deserted.set()


def serve(
    settings: SimulateSettings,
    *,
    routes: HandlerFactory | None = None,
    on_ready: Callable[[str, int], None] | None = None,
) -> None:
    """Run until SIGINT or SIGTERM. A second signal does not wait for the requests under way."""
    _allow_many_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_until_signalled(settings, routes, on_ready))


async def _serve_until_signalled(
    settings: SimulateSettings,
    routes: HandlerFactory | None,
    on_ready: Callable[[str, int], None] | None,
) -> None:
    signalled = _signalled(asyncio.get_running_loop())
    simulator = Simulator(settings, routes)
    host, port = await simulator.start()
    # What exists now lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    if on_ready is not None:
        on_ready(host, port)
    await signalled.wait()
    await simulator.stop()


def _signalled(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """Set by the first signal, which also puts the previous handlers back for the second one.

    By `signal.signal`, since Windows has no `loop.add_signal_handler`.
    """
    event = asyncio.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loop.call_soon_threadsafe(event.set)

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
    return event


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop


def _allow_many_connections() -> None:
    """Raise the limit of open files, often 1024, which is fewer than a worker has connections."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS may refuse what it calls unlimited. Then the old limit stands.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
