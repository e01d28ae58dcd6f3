"""The real application under uvicorn, in a thread, on a free port, and the official client for it.

with serving(database_url, tmp_path) as server:
    client = server.client("acme")
    client.batches.list()
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import openai

from batchline.api.context import ApiContext
from batchline.api.server import listen
from batchline.api.serving import app_server
from batchline.cli.logs import set_up_logging
from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.files.objects import Objects
from batchline.governance import keys
from batchline.governance.registry import Registry
from batchline.metrics.database import ReadLimits
from batchline.model import DEFAULT_TENANT, Role
from batchline.store.pool import Sessions
from batchline.store.session import Session
from tests.support.builders import on
from tests.support.logs import log_settings_restored
from tests.support.openai_client import KEPT_IDLE, openai_client
from tests.support.waiting import wait_for

# Anything goes, to nowhere: for tests in which no worker runs.
NOWHERE = UpstreamSettings("nowhere", "http://127.0.0.1:9/v1")
# Metrics of the database as they are now, on a machine as slow as it may be.
PATIENT = ReadLimits(max_age=0.0, statement=120.0, page=600.0)
# Longer than the server gives running requests. And nobody waits for a busy pool in vain.
_STOP_LIMIT = 120.0
_PATIENCE = 60.0
# Seconds between two reads for live updates.
_LIVE_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    database: str
    objects: Objects
    settings: ServerSettings

    def key(self, tenant: str = DEFAULT_TENANT, role: Role = Role.USER, name: str | None = None) -> str:
        """The secret of a new key."""

        async def make(session: Session) -> str:
            _, secret = await keys.create(session, name or f"key of {tenant}", tenant, role)
            return secret

        return on(self.database, make)

    def client(
        self, tenant: str = DEFAULT_TENANT, *, key: str | None = None, max_retries: int = 0
    ) -> openai.OpenAI:
        """The official client; without retries, so that a test sees every answer."""
        return openai_client(key or self.key(tenant), self.url, max_retries=max_retries)

    def async_client(
        self, tenant: str = DEFAULT_TENANT, *, key: str | None = None, max_retries: int = 0
    ) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            api_key=key or self.key(tenant), base_url=f"{self.url}/v1", max_retries=max_retries, timeout=60
        )

    def http(self, key: str | None = None) -> httpx2.Client:
        """Bare HTTP, for what the official client would not send."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        limits = httpx2.Limits(keepalive_expiry=KEPT_IDLE)
        return httpx2.Client(base_url=self.url, headers=headers, timeout=60, limits=limits)


@contextmanager
def serving(
    database: str,
    folder: Path,
    settings: ServerSettings | None = None,
    registry: Registry | None = None,
    metrics: ReadLimits = PATIENT,
) -> Iterator[Server]:
    """A server on this database, with its objects in a folder, until the context ends."""
    with log_settings_restored():
        set_up_logging()
        yield from _served(database, folder, settings, registry, metrics)


def _served(
    database: str,
    folder: Path,
    settings: ServerSettings | None,
    registry: Registry | None,
    metrics: ReadLimits,
) -> Iterator[Server]:
    chosen = settings or ServerSettings(upstreams=(NOWHERE,), sessions=8, streams=4)
    if chosen.public_openapi is None:
        # As `serve` does on loopback.
        chosen = replace(chosen, public_openapi=True)
    objects = Objects.at(chosen.objects or folder / "objects")
    running = _Running(database, objects, chosen, registry, metrics)
    thread = threading.Thread(target=running.run, name="server")
    thread.start()
    try:
        wait_for("the server to listen", lambda: running.server.started or not thread.is_alive())
        assert running.server.started, "the server did not start"
        port = running.listening.getsockname()[1]
        yield Server(f"http://127.0.0.1:{port}", database, objects, chosen)
    finally:
        running.server.stop()
        thread.join(_STOP_LIMIT)
        assert not thread.is_alive(), "the server did not stop"


class _Running:
    def __init__(
        self,
        database: str,
        objects: Objects,
        settings: ServerSettings,
        registry: Registry | None,
        metrics: ReadLimits,
    ) -> None:
        self.sessions = Sessions(
            database, maximum=settings.sessions, streams=settings.streams, patience=_PATIENCE
        )
        self.listening = listen("127.0.0.1", 0)
        context = ApiContext(
            self.sessions, objects, database, settings, metrics=metrics, live_pause=_LIVE_PAUSE
        )
        self.server = app_server(context, self.listening, registry)

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            await self.server.run_until_stopped()
        finally:
            await self.sessions.close()
