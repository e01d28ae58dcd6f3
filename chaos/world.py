"""All parts of the harness: PostgreSQL, proxies, upstream, workers, API server, object store and clients."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from chaos.clients import Clients
from chaos.pipeline_clients import PipelineClients
from chaos.postgres import Postgres
from chaos.processes import Member
from chaos.proxy import Proxy
from chaos.schedule import ATTEMPTS, LEASE, TIMEOUT
from chaos.upstream import FaultyUpstream

_CONCURRENCY = 16
# Smaller than most outputs, so that writing them fails half-way.
_FULL_AT = 8 * 1024
_READY_LIMIT = 120.0
_LOOK = 0.1
# An idle worker has at least the connections of its claimer, its poller and its listener.
_LINKS_OF_A_WORKER = 3
_SETTINGS = """
[server]
windows = ["24h"]

[[upstreams]]
name = "chaos"
base_url = "{url}"
timeout = "{timeout:g}s"
max_attempts = {attempts}
"""


class World:
    """The running harness. `begin` creates it, `end` stops it."""

    def __init__(
        self, folder: Path, postgres: Postgres, upstream: FaultyUpstream, proxies: list[Proxy], port: int
    ) -> None:
        self.folder = folder
        self.postgres = postgres
        self.upstream = upstream
        self.objects = folder / "data" / "objects"
        *own, shared = proxies
        self.proxies = own
        """One proxy per worker."""
        self.shared = shared
        """The proxy of the server and of all clients."""
        location = ("--data-dir", str(folder / "data"), "--config", str(folder / "batchline.toml"))
        databases = [postgres.through(proxy.port) for proxy in own]
        # Half of the workers run lines, the others Python operations; of an odd number, more run lines.
        of_lines = (len(own) + 1) // 2
        self.workers = [
            _line_worker(folder, number, database, location)
            if number < of_lines
            else _app_worker(folder, number, database)
            for number, database in enumerate(databases)
        ]
        database = postgres.through(shared.port)
        self.server = Member(
            "API server",
            ("serve", "--no-worker", "--no-auth", "--port", str(port), *location, "--database", database),
            folder / "server.log",
        )
        self.pipelines = PipelineClients(database, folder / "data")
        self.clients = Clients(database, f"http://127.0.0.1:{port}", upstream.url, upstream.starving_url)
        self._blocked: set[Path] = set()

    @classmethod
    async def begin(cls, folder: Path, seed: int, workers: int, programs: Path | None = None) -> "World":
        (folder / "data").mkdir()
        postgres = await Postgres.start(folder / "postgres", programs)
        upstream = FaultyUpstream(seed)
        await upstream.start()
        proxies = [Proxy(postgres.socket) for _ in range(workers + 1)]
        for proxy in proxies:
            await proxy.start()
        settings = _SETTINGS.format(url=upstream.url, timeout=TIMEOUT, attempts=ATTEMPTS)
        (folder / "batchline.toml").write_text(settings)
        world = cls(folder, postgres, upstream, proxies, _free_port())
        for member in world.members:
            member.start()
        return world

    @property
    def members(self) -> list[Member]:
        return [*self.workers, self.server]

    def all_proxies(self) -> list[Proxy]:
        return [*self.proxies, self.shared]

    async def ready(self) -> None:
        """Wait until all processes are running."""
        async with asyncio.timeout(_READY_LIMIT):
            await self.clients.answered()
            while True:
                if all(proxy.links >= _LINKS_OF_A_WORKER for proxy in self.proxies):
                    return
                await asyncio.sleep(_LOOK)

    async def heal(self) -> None:
        """End every fault."""
        self.find_store()
        self.unblock_outputs()
        self.upstream.heal()
        await self.upstream.come_up()
        for proxy in self.all_proxies():
            proxy.heal()
        for member in self.members:
            member.heal()
        self.postgres.release_snapshots()
        await self._heal_postgres()

    async def _heal_postgres(self) -> None:
        """Make the database writable again. It may still be recovering from a full disk."""
        async with asyncio.timeout(_READY_LIMIT):
            while not (await self.postgres.answers() and await self.postgres.accept_writes()):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)

    def forget_connections(self) -> None:
        """Close half-open connections towards the server."""
        for proxy in self.all_proxies():
            proxy.forget()

    async def end(self) -> None:
        await self.heal()
        await self.clients.close()
        await self.pipelines.close()
        await asyncio.gather(*(member.stop() for member in self.members))
        for proxy in self.all_proxies():
            await proxy.stop()
        await self.upstream.stop()
        await self.postgres.stop()

    def fill_store(self) -> None:
        """Make writes of more than a few KiB fail."""
        for member in self.members:
            member.limit_files(_FULL_AT)

    def empty_store(self) -> None:
        for member in self.members:
            member.limit_files(None)

    def lose_store(self) -> bool:
        """Replace the object store's folder, as if a disk were not mounted."""
        if self._hidden.exists() or not self.objects.exists():
            return False
        self.objects.rename(self._hidden)
        self.objects.touch()
        return True

    def find_store(self) -> None:
        if self._hidden.exists():
            self.objects.unlink()
            self._hidden.rename(self.objects)

    def block_outputs(self, batch_id: UUID) -> bool:
        """Block the path of this batch's files. Return False if they already exist."""
        blocked = self.objects / "outputs" / batch_id.hex
        try:
            blocked.parent.mkdir(parents=True, exist_ok=True)
            blocked.touch(exist_ok=False)
        except OSError:
            # This also happens while the whole store is away.
            return False
        self._blocked.add(blocked)
        return True

    def unblock_outputs(self) -> None:
        for blocked in set(self._blocked):
            with suppress(OSError):
                blocked.unlink()
                self._blocked.discard(blocked)

    @property
    def _hidden(self) -> Path:
        return self.objects.with_name("objects.away")


def _line_worker(folder: Path, number: int, database: str, location: tuple[str, ...]) -> Member:
    options = ("--lease", f"{LEASE:g}", "-c", str(_CONCURRENCY), *location, "--database", database)
    return Member(f"worker {number}", ("worker", *options), folder / f"worker-{number}.log")


def _app_worker(folder: Path, number: int, database: str) -> Member:
    return Member(
        f"worker {number}",
        ("worker", "chaos.pipeline_app:app", "--lease", f"{LEASE:g}"),
        folder / f"worker-{number}.log",
        {"BATCHLINE_DATABASE_URL": database, "BATCHLINE_DATA_DIR": str(folder / "data")},
    )


def _free_port() -> int:
    """Choose a free port. The server keeps it across restarts, because its clients know it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
