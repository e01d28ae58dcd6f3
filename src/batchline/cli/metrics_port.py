"""The metrics port of a worker. Its modules are imported only if there is one: they take time to import."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from batchline.cli.display.console import CommandError
from batchline.config.settings import ServerSettings, WorkerSettings
from batchline.governance.registry import Registry
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.observer import WorkerObserver
from batchline.worker.worker import Worker

# Connections at once. Whoever scrapes needs one.
_MAX_CONNECTIONS = 64

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


class MetricsPort:
    """What a worker measures, and the pages that show it."""

    def __init__(
        self,
        sock: socket.socket,
        url: str,
        settings: ServerSettings,
        operations: Registry,
        upstreams: Upstreams,
    ) -> None:
        from batchline.api.server import Server
        from batchline.metrics.database import DatabaseMetrics
        from batchline.metrics.labels import UpstreamNames
        from batchline.metrics.page import worker_pages
        from batchline.metrics.worker import WorkerMetrics

        names = UpstreamNames(settings, operations)
        self._metrics = WorkerMetrics(names, upstreams)
        self._database = DatabaseMetrics(url, names)
        pages = worker_pages(self._metrics, self._database)
        self._server = Server(pages, sock, limit_concurrency=_MAX_CONNECTIONS, lifespan="off")
        host, port, *_ = sock.getsockname()
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    @property
    def observer(self) -> WorkerObserver:
        return self._metrics

    @asynccontextmanager
    async def serving(self, worker: Worker) -> AsyncIterator[None]:
        """Answer while the context is open, also while the worker finishes its requests in flight."""
        self._metrics.watch(worker)
        answering = asyncio.create_task(self._server.run_until_stopped())
        try:
            async with self._metrics.process.measuring():
                yield
        finally:
            # Nobody needs the rest of a page of a worker that has ended.
            self._server.stop()
            self._server.stop()
            await asyncio.wait([answering])
            if (error := answering.exception()) is not None:
                _log.error("the metrics port failed", reason=str(error))
            await self._database.close()


@asynccontextmanager
async def serving_metrics(
    port: MetricsPort | None, worker: Worker, say: Callable[[str], None]
) -> AsyncIterator[None]:
    """Serve the worker's metrics while the context is open, if there is a port for them."""
    if port is None:
        yield
        return
    async with port.serving(worker):
        say(f"metrics on {port.url}")
        _log.info("serving metrics", url=port.url)
        yield
