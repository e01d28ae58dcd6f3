"""The HTTP client alone: sends the requests of a file with a number in flight, and keeps nothing.

    python -m benchmarks.bare.client INPUT.jsonl UPSTREAM CONCURRENCY

prints requests per second. Bodies are read into memory first; the requests are those that a worker would
send.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import msgspec
import uvloop
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.http import HeaderMap

from benchmarks.inputs import URL


class _Line(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


def _read(path: Path) -> list[tuple[str, bytes]]:
    decode = msgspec.json.Decoder(_Line).decode
    return [(line.custom_id, bytes(line.body)) for line in map(decode, path.read_bytes().splitlines())]


async def _run(lines: list[tuple[str, bytes]], upstream: str, concurrency: int) -> float:
    # The same settings as in upstreams/http_upstream.py.
    builder = ClientBuilder().http1_only().no_proxy().follow_redirects(False)
    headers = HeaderMap({"Content-Type": "application/json"})
    async with builder.default_headers(headers).build() as client:
        remaining = iter(lines)
        begun = perf_counter()
        async with asyncio.TaskGroup() as producer:
            for _ in range(concurrency):
                producer.create_task(_send(client, upstream + URL, remaining))
        return len(lines) / (perf_counter() - begun)


async def _send(client: Client, url: str, remaining: Iterator[tuple[str, bytes]]) -> None:
    for key, body in remaining:
        response = await client.post(url).header("Idempotency-Key", key).body_bytes(body).build().send()
        await response.bytes()
        assert response.status == 200


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(_run(_read(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]))))
