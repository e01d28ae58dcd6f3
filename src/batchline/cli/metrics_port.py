"""The metrics port of a worker. Its modules are imported only if there is one: they take time to import."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import structlog

from batchline.cli.display.console import CommandError
from batchline.config.settings import ServerSettings, WorkerSettings
from batchline.governance.registry import Registry
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.observer import WorkerObserver
from batchline.worker.worker import Worker

# Connections at once. Whoever scrapes needs one.
_MAX_CONNECTIONS = 64
_MAX_PORT = 65_535

_log = structlog.get_logger("batchline.worker")


@contextmanager
def metrics_socket(settings: WorkerSettings) -> Iterator[socket.socket | None]:
    """A listening socket for metrics; None if the settings name no port."""
    host, port = settings.metrics_host, settings.metrics_port
    if port is None:
        yield None
        return
    from batchline.api.server import listen

    try:
        sock = listen(host, port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CommandError(
            f"--metrics-port: cannot listen on {host}, port {port}: {reason};"
            " give each worker on a machine its own port, or 0 for any free one"
        ) from error
    with sock:
        yield sock


def ports_of_processes(settings: WorkerSettings, count: int) -> Sequence[int | None]:
    """A metrics port for each of several processes: the port of the settings and those that follow it. 0 is
    any free port for each, and None is none. Raises CommandError if one cannot be used."""
    first = settings.metrics_port
    if not first:
        return [first] * count
    if first + count - 1 > _MAX_PORT:
        raise CommandError(
            f"--metrics-port {first}: each of the {count} processes has a port of its own, and there is none"
            f" after {_MAX_PORT}; give a lower one"
        )
    ports = range(first, first + count)
    for port in ports:
        # Here, too: otherwise one process would end and the others go on.
        with metrics_socket(replace(settings, metrics_port=port)):
            pass
    return ports


class MetricsPort:
    """What the workers of this process measure, and the pages that show it."""

    def __init__(
        self,
        sock: socket.socket,
        settings: ServerSettings,
        operations: Registry,
        upstreams: Upstreams,
    ) -> None:
        from batchline.metrics.labels import UpstreamNames
        from batchline.metrics.worker import WorkerMetrics

        self._sock = sock
        self._names = UpstreamNames(settings, operations)
        self._metrics = WorkerMetrics(self._names, upstreams)
        host, port, *_ = sock.getsockname()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    @property
    def observer(self) -> WorkerObserver:
        return self._metrics

    def watch(self, worker: Worker) -> None:
        self._metrics.watch(worker)

    @asynccontextmanager
    async def serving(self, database: str) -> AsyncIterator[None]:
        """Answer while the context is open, also while workers finish their requests in flight."""
        from batchline.api.server import Server
        from batchline.metrics.database import DatabaseMetrics
        from batchline.metrics.page import worker_pages

        read = DatabaseMetrics(database, self._names)
        pages = worker_pages(self._metrics, read)
        server = Server(pages, self._sock, limit_concurrency=_MAX_CONNECTIONS, lifespan="off")
        answering = asyncio.create_task(server.run_until_stopped())
        try:
            async with self._metrics.process.measuring():
                yield
        finally:
            # Nobody needs the rest of a page of a worker that has ended.
            server.stop()
            server.stop()
            await asyncio.wait([answering])
            if (error := answering.exception()) is not None:
                _log.error("the metrics port failed", reason=str(error))
            await read.close()


@asynccontextmanager
async def serving_metrics(
    port: MetricsPort | None, database: str, worker: Worker, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Serve the worker's metrics while the context is open, if there is a port for them."""
    if port is None:
        yield
        return
    port.watch(worker)
    async with port.serving(database):
        say(f"metrics on {port.url}")
        _log.info("serving metrics", url=port.url)
        yield
