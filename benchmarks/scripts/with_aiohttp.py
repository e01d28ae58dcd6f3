"""Send the requests of a JSONL file with aiohttp, many at once, and append each answer to a file.

    python -m benchmarks.scripts.with_aiohttp INPUT.jsonl UPSTREAM CONCURRENCY OUTPUT.jsonl

prints requests per second. In the style of OpenAI's cookbook: one task per request, a semaphore, retries with
growing delays, one line of output at a time. After a crash, the requests in flight are lost, and finished
ones may be sent again.
"""

import asyncio
import json
import sys
from time import perf_counter
from typing import Any

import aiohttp

_ATTEMPTS = 5


async def main(path: str, upstream: str, concurrency: int, output: str) -> None:
    with open(path) as file:  # noqa: ASYNC230
        requests = [json.loads(line) for line in file]
    semaphore = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(limit=concurrency)
    begun = perf_counter()
    with open(output, "a") as results:  # noqa: ASYNC230
        async with aiohttp.ClientSession(connector=connector) as session:

            async def send(request: dict[str, Any]) -> None:
                async with semaphore:
                    for attempt in range(_ATTEMPTS):
                        async with session.post(upstream + request["url"], json=request["body"]) as response:
                            body = await response.json()
                            if response.status == 200:
                                break
                        await asyncio.sleep(2**attempt)
                    line = {"custom_id": request["custom_id"], "status_code": response.status, "body": body}
                    results.write(json.dumps(line) + "\n")

            await asyncio.gather(*(send(request) for request in requests))
    print(len(requests) / (perf_counter() - begun))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
