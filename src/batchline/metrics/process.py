"""Metrics of any process: its version, and how late its event loop is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from batchline import __version__
from batchline.metrics import definitions

_EVERY = 0.5


class ProcessMetrics(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._lag = definitions.LOOP_LAG.histogram(registry)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        build = definitions.BUILD.gauge_family()
        build.add_metric((__version__,), 1)
        yield build

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[None]:
        """Measure how late the event loop is, while the context is open."""
        task = asyncio.create_task(self._measure())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _measure(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _EVERY
            await asyncio.sleep(_EVERY)
            self._lag.observe(max(0.0, clock() - due))
