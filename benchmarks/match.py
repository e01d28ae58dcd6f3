"""Run a contestant with a database and processes, and measure time, WAL and CPU."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any
from urllib.parse import quote

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from benchmarks.bench import Bench
from benchmarks.contestants.environments import Unavailable, python_of
from benchmarks.contestants.roster import BATCHLINE, OTHERS, Entrant
from benchmarks.server import BenchServer, a_server, execute

_ROOT = Path(__file__).parent.parent
# PostgreSQL's defaults, instead of the settings of Batchline's embedded server.
_PLAIN = {
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "5min",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "wal_compression": "off",
    "jit": "on",
    "max_connections": "300",
}
# Seconds, longer than any turn: a contestant that hangs ends the run.
_LIMIT = 600.0
_POLL = 0.03


@contextmanager
def plain_server(scratch: Path, **settings: str) -> Iterator[BenchServer]:
    """PostgreSQL with its defaults, except for more connections."""
    with (
        tempfile.TemporaryDirectory(prefix="plain-", dir=scratch) as folder,
        a_server(Path(folder), **_PLAIN, **settings) as server,
    ):
        yield server


@dataclass(frozen=True, slots=True)
class Player:
    entrant: Entrant
    python: Path

    @property
    def label(self) -> str:
        return self.entrant.label

    def drive(self, command: str, url: str, *arguments: object) -> list[str]:
        drive = [str(self.python), "-m", "benchmarks.contestants.drive", self.entrant.module, command, url]
        return [*drive, *map(str, arguments)]


def players(bench: Bench, entrants: Sequence[Entrant] = (BATCHLINE, *OTHERS)) -> tuple[list[Player], str]:
    """The contestants that can run here, ours first, and a note on the others. At most two in a quick run."""
    present, missing = [], []
    for entrant in entrants[:2] if bench.quick else entrants:
        try:
            present.append(Player(entrant, python_of(entrant, make=not bench.quick)))
        except Unavailable as error:
            missing.append(f"{entrant.label} did not take part: {error}")
    return present, "\n".join(missing)


@contextmanager
def database(server: BenchServer, player: Player) -> Iterator[str]:
    """A database with the contestant's tables, which it creates once for all its turns on this server."""

    def install(conninfo: str) -> None:
        command = player.drive("install", _as_url(conninfo))
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{player.label} could not create its tables:\n{done.stderr}")

    template = server.template(f"tables_of_{player.entrant.module}", install)
    with server.database(migrated=False, template=template) as conninfo:
        yield _as_url(conninfo)


def _as_url(conninfo: str) -> str:
    """Convert to the form that every driver understands."""
    parts = conninfo_to_dict(conninfo)
    host = quote(str(parts["host"]), safe="/")
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={host}&port={parts['port']}"


class Process:
    """A driver's process. Its output can be read line by line, as JSON."""

    def __init__(self, player: Player, command: list[str], errors: IO[bytes]) -> None:
        self._errors = errors
        self._label = player.label
        self.popen = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )

    def read(self) -> Any:
        assert self.popen.stdout is not None
        while line := self.popen.stdout.readline():
            # Some libraries print greetings.
            if line[0] in '{"0123456789':
                return json.loads(line)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-3000:]
        raise RuntimeError(f"{self._label} ended too early:\n{said}")

    def go(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("go\n")
        self.popen.stdin.flush()

    def cpu(self) -> float:
        """CPU seconds used so far."""
        times = psutil.Process(self.popen.pid).cpu_times()
        return times.user + times.system

    def kill(self) -> None:
        """Kill it and its children at once."""
        if self.popen.poll() is None:
            children = psutil.Process(self.popen.pid).children(recursive=True)
            self.popen.send_signal(signal.SIGKILL)
            self.popen.wait()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()


@contextmanager
def driving(player: Player, command: str, url: str, *arguments: object) -> Iterator[Process]:
    """Start a driver, wait until it is ready, and kill it at the end."""
    with tempfile.TemporaryFile() as errors:
        process = Process(player, player.drive(command, url, *arguments), errors)
        try:
            if process.read() != "ready":
                raise RuntimeError(f"{player.label} is not ready")
            yield process
        finally:
            process.kill()


@contextmanager
def working(
    player: Player,
    url: str,
    handler: str = "nothing",
    *,
    seconds: float = 0,
    notes: Path = Path(os.devnull),
    concurrency: int = 0,
    member: int = 0,
) -> Iterator[Process]:
    """Start a worker, and let it begin."""
    with driving(player, "work", url, handler, seconds, notes, concurrency, member) as process:
        process.go()
        yield process


class Meter:
    """Meter of the server's costs: bytes of WAL, and CPU seconds of all its processes."""

    def __init__(self, server: BenchServer) -> None:
        self._url = server.url
        self._postmaster = psutil.Process(
            int((server.log.parent / "postgres/postmaster.pid").read_text().split()[0])
        )
        self._wal, self._cpu = self._read_wal(), self._read_cpu()

    def spent(self) -> tuple[float, float]:
        return self._read_wal() - self._wal, self._read_cpu() - self._cpu

    def _read_wal(self) -> float:
        return float(execute(self._url, sql.SQL("SELECT pg_current_wal_lsn() - '0/0'"))[0][0])

    def _read_cpu(self) -> float:
        """CPU seconds, including those of ended backends, which their parent keeps."""
        own = self._postmaster.cpu_times()
        spent = own.user + own.system + own.children_user + own.children_system
        for child in self._postmaster.children():
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            spent += times.user + times.system
        return spent


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of accepting or draining: elapsed seconds; bytes of WAL and microseconds of CPU per item."""

    items: int
    seconds: float
    wal: float
    client_cpu: float
    server_cpu: float

    @property
    def rate(self) -> float:
        return self.items / self.seconds


def accept(server: BenchServer, player: Player, url: str, items: int) -> Cost:
    with driving(player, "accept", url, items) as process:
        server.settle_down()
        meter = Meter(server)
        process.go()
        said = process.read()
        wal, cpu = meter.spent()
    return Cost(items, said["seconds"], wal / items, 1e6 * said["cpu"] / items, 1e6 * cpu / items)


def drain(
    server: BenchServer,
    player: Player,
    url: str,
    items: int,
    workers: int,
    then: Callable[[], None] = lambda: None,
) -> Cost:
    """Measure from the first call of a handler, in any worker, until nothing is left.

    `then` runs while the workers still exist.
    """
    with ExitStack() as stack:
        producer = [
            stack.enter_context(driving(player, "work", url, "nothing", 0, os.devnull, 0, member))
            for member in range(workers)
        ]
        meter = Meter(server)
        for process in producer:
            process.go()
        if until_finished(player, url, _LIMIT) is None:
            raise RuntimeError(f"{player.label} did not finish {items:,} items in {_LIMIT:g} s")
        ended = perf_counter()
        wal, server_cpu = meter.spent()
        spent = [process.cpu() for process in producer]
        then()
        begun, client_cpu = ended, 0.0
        for process, cpu in zip(producer, spent, strict=True):
            process.kill()
            if first := _first_of(process):
                begun = min(begun, first["first"])
                client_cpu += cpu - first["cpu"]
    if begun == ended:
        raise RuntimeError(f"{player.label} finished everything without calling a handler")
    return Cost(items, ended - begun, wal / items, 1e6 * client_cpu / items, 1e6 * server_cpu / items)


def until_finished(player: Player, url: str, limit: float) -> float | None:
    """Seconds until nothing was unfinished; None if that took longer than the limit."""
    begun = perf_counter()
    with psycopg.connect(url, autocommit=True, application_name="benchmark") as connection:
        while connection.execute(player.entrant.unfinished, prepare=True).fetchone() is not None:
            if perf_counter() - begun > limit:
                return None
            time.sleep(_POLL)
    return perf_counter() - begun


def _first_of(process: Process) -> Any:
    """When a worker called its first handler; None if it had no item."""
    assert process.popen.stdout is not None
    lines = [line for line in process.popen.stdout if line.startswith("{")]
    return json.loads(lines[0]) if lines else None
