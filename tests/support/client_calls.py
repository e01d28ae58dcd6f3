"""Many calls at once of `batchline.AsyncOpenAI`, in a process of their own.

python -m tests.support.client_calls DATABASE DATA_DIR UPSTREAM NAME COUNT
"""

import asyncio
import json
import sys
from pathlib import Path

import batchline


async def answers(client: batchline.AsyncOpenAI, count: int) -> list[str | None]:
    async def answer(number: int) -> str | None:
        completion = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": f"question {number}"}]
        )
        return completion.choices[0].message.content

    return list(await asyncio.gather(*map(answer, range(count))))


async def main(database: str, data_dir: str, upstream: str, name: str, count: str) -> None:
    async with batchline.AsyncOpenAI(
        upstream=upstream, batch=name, database=database, data_dir=Path(data_dir)
    ) as client:
        print(json.dumps(await answers(client, int(count))))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
