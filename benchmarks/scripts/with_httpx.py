"""Send the requests of a JSONL file with httpx, many at once, and append each answer to a file.

    python -m benchmarks.scripts.with_httpx INPUT.jsonl UPSTREAM CONCURRENCY OUTPUT.jsonl

prints requests per second. Like `with_aiohttp`, with the client that OpenAI's own library uses.
"""

import asyncio
import json
import sys
from time import perf_counter
from typing import Any

import httpx

_ATTEMPTS = 5


async def main(path: str, upstream: str, concurrency: int, output: str) -> None:
    with open(path) as file:  # noqa: ASYNC230
        requests = [json.loads(line) for line in file]
    semaphore = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    begun = perf_counter()
    with open(output, "a") as results:  # noqa: ASYNC230
        async with httpx.AsyncClient(limits=limits, timeout=600) as client:

            async def send(request: dict[str, Any]) -> None:
                async with semaphore:
                    for attempt in range(_ATTEMPTS):
                        response = await client.post(upstream + request["url"], json=request["body"])
                        if response.status_code == 200:
                            break
                        await asyncio.sleep(2**attempt)
                    line = {
                        "custom_id": request["custom_id"],
                        "status_code": response.status_code,
                        "body": response.json(),
                    }
                    results.write(json.dumps(line) + "\n")

            await asyncio.gather(*(send(request) for request in requests))
    print(len(requests) / (perf_counter() - begun))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
