"""What the parts share: a database, real processes, HTTP, and checks that print what they found."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]
LIMIT = 120.0


class StepFailed(Exception):
    """A command failed, or a fact did not come about in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer over HTTP, of any status."""

    status: int
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated upstream in its own process."""

    url: str

    def read(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            content: bytes = response.read()
            return content

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read("/stats"))
        return found


@dataclass(frozen=True, slots=True)
class Site:
    """One part's database and folder. `short` asks for a small form of the part."""

    database: str
    folder: Path
    short: bool
    failures: list[str] = field(default_factory=list)

    def size(self, full: int, short: int) -> int:
        return short if self.short else full

    def check(self, what: str, holds: bool, found: object = None) -> None:
        """Print what was checked and the result; remember a failure."""
        print(
            f"  {'ok    ' if holds else 'FAILED'}  {what}" + (f": {found}" if found is not None else ""),
            flush=True,
        )
        if not holds:
            self.failures.append(what)

    def say(self, text: str) -> None:
        print(f"  {text}", flush=True)

    # Processes

    def command(self, *arguments: str) -> list[str]:
        location = ("--database", self.database, "--data-dir", str(self.folder / "data"))
        return [sys.executable, "-m", "batchline", *arguments, *location]

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=300, env=environment()
        )
        if done.returncode != 0:
            raise StepFailed(f"batchline {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def read(self, *arguments: str) -> Any:
        """The JSON document that a command prints."""
        return json.loads(self.run(*arguments, "--json"))

    def counts(self, batch: str) -> dict[str, int]:
        found: dict[str, int] = self.read("status", batch)["request_counts"]
        return found

    @contextmanager
    def worker(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """A worker, which is killed at the latest when the block ends."""
        with started(self.command("worker", *options)) as process:
            yield process

    @contextmanager
    def server(self, *options: str) -> Iterator[tuple[str, str]]:
        """`batchline serve`: its URL and its admin key."""
        with started(self.command("serve", "--port", "0", *options), stdout=subprocess.PIPE) as process:
            key = ""
            for line in process.stdout or ():
                if "shown this once: " in line:
                    key = line.rpartition("shown this once: ")[2].split()[0]
                if "listening on " in line:
                    yield line.rpartition("listening on ")[2].split()[0].removesuffix("/v1"), key
                    return
            raise StepFailed("the server did not start")

    # The database

    def sql(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), params or None)
            return cursor.fetchall() if cursor.description else []

    def number(self, query: str, *params: object) -> int:
        ((found,),) = self.sql(query, *params)
        return int(found)

    def rows(self) -> dict[str, int]:
        """The number of rows of every table of Batchline."""
        tables = [
            name for (name,) in self.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'batchline'")
        ]
        return {table: self.number(f"SELECT count(*) FROM batchline.{table}") for table in tables}

    def make_due(self, task: str) -> None:
        """Maintenance runs every 5 to 10 minutes; nobody wants to wait for it here."""
        self.sql("UPDATE batchline.maintenance_tasks SET due_at = now() WHERE name = %s", task)


def environment() -> dict[str, str]:
    """Without settings of the caller's own Batchline."""
    return {name: value for name, value in os.environ.items() if not name.startswith("BATCHLINE_")}


@contextmanager
def started(command: list[str], stdout: int | None = subprocess.DEVNULL) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(command, stdout=stdout, text=True, env=environment(), cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def simulated(*options: str, module: str = "batchline") -> Iterator[Simulated]:
    """`batchline simulate`, or another simulator with the same output."""
    words = ["simulate"] if module == "batchline" else []
    command = [sys.executable, "-m", module, *words, "--port", "0", "--json", *options]
    with started(command, stdout=subprocess.PIPE) as process:
        said = ""
        for line in process.stdout or ():
            said += line
            if line.rstrip().endswith("}"):
                break
        yield Simulated(json.loads(said)["url"])


def wait_for(what: str, fact: Callable[[], Any], limit: float = LIMIT) -> Any:
    """The first true value of `fact`."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if value := fact():
            return value
        time.sleep(0.05)
    raise StepFailed(f"waited {limit:g} s for {what}")


def call(method: str, url: str, key: str, body: object = None) -> Answer:
    content = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return _answer(response.status, response.headers, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return _answer(error.code, error.headers, error.read())


def _answer(status: int, headers: Any, content: bytes) -> Answer:
    is_json = "json" in headers.get("content-type", "")
    known = {name.lower(): value for name, value in headers.items()}
    return Answer(status, known, json.loads(content) if is_json and content else content.decode())


def write_lines(path: Path, count: int, url: str = "/v1/chat/completions") -> Path:
    with path.open("w") as stream:
        for number in range(count):
            text = f"Say {number}."
            said = (
                {"input": text}
                if url == "/v1/responses"
                else {"messages": [{"role": "user", "content": text}]}
            )
            line = {
                "custom_id": f"q-{number}",
                "method": "POST",
                "url": url,
                "body": {"model": "sim-small", **said},
            }
            stream.write(json.dumps(line) + "\n")
    return path
