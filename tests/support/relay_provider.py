"""A provider of batches in a process of its own: Batchline's server, and what it has accepted."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.files.objects import Objects
from batchline.model import Batch, RelaySettings, RunSettings
from batchline.store import batches
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import HttpSettings, Upstreams
from batchline.worker.relay.relay import RelayScope
from batchline.worker.worker import Worker, WorkerOptions
from tests.support.builders import a_batch, a_database, sql
from tests.support.processes import Upstream, simulated
from tests.support.server_process import Served, served

KEY = "RELAY_TEST_KEY"
MODEL = "sim-small"


@dataclass
class OpenAIProvider:
    """Batchline's own server. `upstream` counts the lines that it has run."""

    server: Served
    upstream: Upstream
    database: str

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def key(self) -> str:
        return self.server.key

    def chunks(self) -> list[str]:
        """The chunks of all batches that it has accepted, one for each batch."""
        with self.server.client() as client:
            return [
                (each.metadata or {}).get("batchline_chunk", "") for each in client.batches.list(limit=100)
            ]

    def executions(self) -> int:
        return int(self.upstream.stats()["executed"])


@contextmanager
def openai_provider(server_url: str, template: str, folder: Path, *options: str) -> Iterator[OpenAIProvider]:
    with (
        a_database(server_url, template) as database,
        simulated() as upstream,
        served(database, folder, "--upstream", upstream.url, *options) as server,
    ):
        yield OpenAIProvider(server, upstream, database)


def relayed(url: str, relay: RelaySettings | None = None, **more: Any) -> RunSettings:
    """Settings for lines that go through the batch API at this URL."""
    return RunSettings(url, api_key_env=KEY, relay=relay or RelaySettings(recheck=1.0), **more)


async def a_relayed_batch(db: Session, lines: int, settings: RunSettings, **more: Any) -> Batch:
    batch = await a_batch(db, {MODEL: lines}, upstream=settings.upstream, **more)
    await batches.change_settings(db, batch.id, settings)
    body = '{"model": "sim-small", "messages": [{"role": "user", "content": "hi"}]}'
    await sql(db, "UPDATE batchline.lines SET body = %(body)s", body=body)
    return batch


@asynccontextmanager
async def relaying(
    url: str,
    folder: Path,
    settings: RunSettings,
    key: str,
    *,
    lease: float = 15.0,
    batch: Batch | None = None,
    max_line: int = 2**26,
    drain: bool = False,
    collect_only: bool = False,
) -> AsyncIterator[Worker]:
    """A worker with a relay, which runs meanwhile. `drain`: which has drained. `collect_only`: the settings
    name the upstream, but do not use its batch API."""
    relay = settings.relay
    assert relay is not None
    assert settings.upstream is not None
    anthropic = [settings.upstream] if relay.api == "anthropic" else []
    upstreams = Upstreams(HttpSettings(max_body=max_line), environ={KEY: key}, anthropic=anthropic)
    executor = HttpExecutor(upstreams)
    scope = Scope(None, None if batch is None else batch.id)
    of = RelayScope(scope, settings.upstream, settings, 8, collect_only)
    worker = Worker(
        url,
        executor,
        Objects.at(folder),
        WorkerSettings(lease=lease, drain=drain),
        scope,
        WorkerOptions(
            relays=[] if collect_only else [of],
            collecting=[of] if collect_only else [],
            upstreams=upstreams,
        ),
    )
    working = asyncio.create_task(worker.run())
    try:
        if drain:
            await working
        yield worker
        worker.stop()
        await working
    finally:
        working.cancel()
        await asyncio.wait([working])
        await executor.close()
