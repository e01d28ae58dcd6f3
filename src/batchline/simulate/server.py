"""Serves the simulated upstream, in a running event loop or as a process."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from batchline.simulate.http import Connection, Handler, stop_listening
from batchline.simulate.routes import Routes
from batchline.simulate.settings import SimulateSettings
from batchline.simulate.tasks import SimulatedTasks
from batchline.simulate.upstream import SimulatedUpstream

_BACKLOG = 4096
_OPEN_FILES = 65_536


# Creates the handler of requests for an event loop.
HandlerFactory = Callable[[asyncio.AbstractEventLoop], Handler]


class Simulator:
    """A server for the OpenAI-compatible upstream, or for other `routes`."""

    def __init__(self, settings: SimulateSettings, routes: HandlerFactory | None = None) -> None:
        self._settings = settings
        self._routes = routes or self._upstream
        self._connections: set[Connection] = set()
        self._no_connections = asyncio.Event()
        self._no_connections.set()
        self._stopping = False

    async def start(self) -> tuple[str, int]:
        """Listen; return host and port."""
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
        settings = self._settings
        return Routes(settings, SimulatedUpstream(settings, loop), SimulatedTasks(settings, loop)).handle

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept no more requests, answer running ones, and close the remaining connections after
        `grace_s`."""
        self._stopping = True
        await stop_listening(self._server)
        for connection in tuple(self._connections):
            connection.wind_up()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._no_connections.wait(), grace_s)
        for connection in tuple(self._connections):
            connection.abort()
        await self._no_connections.wait()
        await self._server.wait_closed()

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._no_connections.clear()
        if self._stopping:
            connection.wind_up()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._no_connections.set()


def serve(
    settings: SimulateSettings,
    *,
    routes: HandlerFactory | None = None,
    on_ready: Callable[[str, int], None] | None = None,
) -> None:
    """Run until SIGINT or SIGTERM. A second signal does not wait for running requests."""
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
    # Existing objects live as long as the process, so the garbage collector can skip them.
    gc.collect()
    gc.freeze()
    if on_ready is not None:
        on_ready(host, port)
    await signalled.wait()
    await simulator.stop()


def _signalled(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that the first signal sets. It also restores the default handlers, for a second signal.

    Uses `signal.signal`, because Windows has no `loop.add_signal_handler`.
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
    """Raise the limit of open files. The usual 1024 is lower than a worker's number of connections."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS may refuse even an unlimited hard limit. Then the old limit stays.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
