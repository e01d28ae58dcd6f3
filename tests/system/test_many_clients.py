"""Two hundred clients at once, each with a batch of its own: all are served, each with its own results."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai.types import Batch

from batchline.governance import keys
from batchline.simulate import answer_to
from batchline.store.session import Session
from tests.support.processes import batchline, simulated
from tests.support.server_process import Served, served

CLIENTS = 200
LINES = 4
# Seconds. All of them share one machine, which may be slow.
PATIENCE = 600
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Outcome:
    batch: Batch
    output: list[dict[str, Any]]
    listed: list[str]


def body(nth: int, line: int) -> dict[str, Any]:
    return {"model": "sim-small", "messages": [{"role": "user", "content": f"Client {nth}, line {line}."}]}


def requests(nth: int) -> bytes:
    lines = (
        {"custom_id": f"{nth}-{line}", "method": "POST", "url": CHAT, "body": body(nth, line)}
        for line in range(LINES)
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def one(server: Served, nth: int, key: str) -> Outcome:
    """All that a client does, from its file to its results, on sockets of its own."""
    # Nothing is encrypted, so no client needs the certificates that each would read.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    url = f"{server.url}/v1"
    # A request that waits for ten seconds for a connection of the server is refused. Then the client retries.
    async with openai.AsyncOpenAI(
        api_key=key, base_url=url, timeout=PATIENCE, max_retries=20, http_client=http
    ) as client:
        file = await client.files.create(file=(f"{nth}.jsonl", requests(nth)), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"client": str(nth)}
        )
        async with asyncio.timeout(PATIENCE):
            # Clients poll: the API has no notification that they could wait for.
            while (batch := await client.batches.retrieve(batch.id)).status != "completed":  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        assert batch.output_file_id is not None
        output = (await client.files.content(batch.output_file_id)).text
        listed = [found.id async for found in client.batches.list()]
    return Outcome(batch, [json.loads(line) for line in output.splitlines()], listed)


@pytest.mark.timeout(900)
async def test_two_hundred_clients_each_get_only_their_own_results(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    secrets = [(await keys.create(db, f"client {nth}", f"tenant-{nth}"))[1] for nth in range(CLIENTS)]
    with simulated() as upstream, served(database_url, tmp_path, "--upstream", upstream.url) as server:
        outcomes = await asyncio.gather(*(one(server, nth, key) for nth, key in enumerate(secrets)))
        stats = upstream.stats()
        location = ("--data-dir", str(tmp_path / "data"), "--database", database_url)
        examined = batchline("doctor", *location)

    assert len({outcome.batch.id for outcome in outcomes}) == CLIENTS
    for nth, outcome in enumerate(outcomes):
        assert outcome.batch.metadata == {"client": str(nth)}
        assert outcome.listed == [outcome.batch.id]
        answers = {line["custom_id"]: line["response"]["body"] for line in outcome.output}
        assert answers == {f"{nth}-{line}": expected(nth, line) for line in range(LINES)}
    assert (stats["executed"], stats["keys_executed_twice"]) == (CLIENTS * LINES, 0)
    assert examined.returncode == 0, examined.stdout


def expected(nth: int, line: int) -> Any:
    """What the upstream answers to this very request."""
    return json.loads(answer_to(CHAT, json.dumps(body(nth, line)).encode(), seed=0))
