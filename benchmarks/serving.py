"""`batchline serve` as a process, as operators run it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.processes import batchline, running


@dataclass(frozen=True, slots=True)
class Serving:
    url: str
    key: str
    pid: int

    def connect(self) -> HTTPConnection:
        """Open a connection that stays open between requests."""
        address = urlsplit(self.url)
        return HTTPConnection(address.hostname or "", address.port, timeout=600)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}


@contextmanager
def serving(database: str, data_dir: Path, *options: str) -> Iterator[Serving]:
    """Run a server on a database without keys, and use the first key that it creates."""
    location = ("--database", database, "--data-dir", str(data_dir))
    with running(batchline("serve", "--port", "0", *location, *options)) as process:
        assert process.stdout is not None
        said = ""
        while (listening := re.search(r"listening on (http://\S+)/v1", said)) is None:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended before it listened: {said}")
            said += line
        key = re.search(r"shown this once: (bl-\S+)", said)
        assert key is not None, said
        yield Serving(listening[1], key[1], process.pid)


def whole(answer: HTTPResponse) -> bytes:
    """Read the whole body of a successful answer, so that the connection can be reused."""
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"answered {answer.status}: {body.decode(errors='replace')[:500]}")
    return body
