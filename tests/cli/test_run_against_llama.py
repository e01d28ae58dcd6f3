"""`batchline run` with its defaults against a real llama.cpp server: one request at a time, no refusals."""

import asyncio
import json
from pathlib import Path

import pytest
from pyreqwest.client import ClientBuilder

from batchline.upstreams.server_load import LoadReader, ServerLoad
from tests.support.llama import llama_server
from tests.support.processes import batchline
from tests.support.simulated_client import Upstream, chat
from tests.support.waiting import LIMIT

LINES = 120
TOKENS = 30


def test_all_lines_complete_and_each_runs_once(tmp_path: Path, database_url: str) -> None:
    inputs, output = write_questions(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    with llama_server(tmp_path / "llama.log") as llama:
        done = batchline(
            *("run", str(inputs), "--upstream", llama.url, "--output", str(output)),
            *("--database", database_url, "--data-dir", str(tmp_path / "data")),
        )
        written = llama.count("tokens_predicted_total")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"line-{number}" for number in range(LINES)]
    assert {answer["response"]["status_code"] for answer in answers} == {200}
    # The model ends no answer early. A request that was given up and sent again would add to this.
    assert written == LINES * TOKENS


def write_questions(path: Path) -> Path:
    lines = (
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": json.loads(chat(f"question {number}", model="tiny", max_tokens=TOKENS)),
        }
        for number in range(LINES)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.uvloop
async def test_the_load_that_llama_reports_is_read(tmp_path: Path) -> None:
    with llama_server(tmp_path / "llama.log") as llama:
        host, _, port = llama.url.removeprefix("http://").partition(":")
        upstream = Upstream(host, int(port))
        # Not more: llama.cpp answers nothing else while all its threads wait for answers.
        askers = [asyncio.create_task(keep_asking(upstream, number)) for number in range(2)]
        async with asyncio.timeout(LIMIT), ClientBuilder().no_proxy().build() as http:
            load = None
            while load != ServerLoad(running=1, waiting=1):
                load = await LoadReader(f"{llama.url}/v1", lambda: 0.0).read(http)
        for asker in askers:
            asker.cancel()
        await asyncio.gather(*askers, return_exceptions=True)
        await upstream.close_clients()


async def keep_asking(upstream: Upstream, number: int) -> None:
    while True:
        await upstream.post(chat(f"question {number}", model="tiny", max_tokens=2000))
