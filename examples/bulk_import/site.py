"""A local site with a manifest and pages, on several ports, which stand for hosts. It counts requests.

    python -m examples.bulk_import.site PAGES HOSTS LATENCY

prints its addresses as JSON. `/stats` says how often each page was requested, and how busy each host was.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from dataclasses import dataclass, field

from examples.bulk_import.entities import COMPOSERS, spellings

PART = 500
# One request in a hundred is answered with 503.
_OVERLOADED = 0.01


@dataclass(slots=True)
class Site:
    pages: int
    latency: float
    hosts: list[str] = field(default_factory=list)
    # Answers with a page, by its number.
    answered: Counter[int] = field(default_factory=Counter)
    in_flight: Counter[int] = field(default_factory=Counter)
    peak: Counter[int] = field(default_factory=Counter)
    overloaded: int = 0

    def manifest(self, part: int) -> str:
        numbers = range(part * PART, min((part + 1) * PART, self.pages))
        return "\n".join(f"{self.hosts[number % len(self.hosts)]}/pages/{number}" for number in numbers)

    def stats(self) -> str:
        found = {"answered": self.answered, "peak": list(self.peak.values()), "overloaded": self.overloaded}
        return json.dumps(found)

    async def answer(self, host: int, path: str) -> tuple[int, str]:
        match path.strip("/").split("/"):
            case ["stats"]:
                return 200, self.stats()
            case ["manifest", part]:
                return 200, self.manifest(int(part))
            case ["pages", number]:
                return await self._page(host, int(number))
        return 404, ""

    async def _page(self, host: int, number: int) -> tuple[int, str]:
        self.in_flight[host] += 1
        self.peak[host] = max(self.peak[host], self.in_flight[host])
        await asyncio.sleep(self.latency)
        self.in_flight[host] -= 1
        if random.random() < _OVERLOADED:
            self.overloaded += 1
            return 503, ""
        self.answered[number] += 1
        return 200, page(number)


def page(number: int) -> str:
    composer = COMPOSERS[number % len(COMPOSERS)]
    names = spellings(composer)
    name = names[number // len(COMPOSERS) % len(names)]
    return f"<html><h1>Composition {number}</h1><p>by {name}</p></html>"


async def serve(pages: int, hosts: int, latency: float) -> None:
    site = Site(pages, latency)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("sockname")[1]
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                status, text = await site.answer(host, head.split()[1])
                body = text.encode()
                writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client is gone, as a worker that was killed.
        finally:
            writer.close()

    servers = [await asyncio.start_server(connected, "127.0.0.1", 0) for _ in range(hosts)]
    site.hosts = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    print(json.dumps(site.hosts), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    try:
        asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
    except KeyboardInterrupt:
        sys.exit(130)
