"""The simulated upstream as a process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from batchline.simulate import answer_to
from tests.support.processes import batchline, simulated
from tests.support.simulated_client import CHAT, DEADLINE_S, Upstream, chat, request, run

SERVE = """
from batchline.simulate import SimulateSettings, serve
serve(SimulateSettings(seed=5), on_ready=lambda host, port: print(host, port, flush=True))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send a signal to one process")
@pytest.mark.parametrize("stopped_by", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_where_it_listens_and_ends_well_on_a_signal(stopped_by: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        host, port = process.stdout.readline().decode().split()

        async def test() -> None:
            upstream = Upstream(host, int(port))
            assert (await upstream.post(chat())).body == answer_to(CHAT, chat(), seed=5)

        run(test())
        os.kill(process.pid, stopped_by)
        _, errors = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, errors) == (0, b"")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("options", "listed"),
    [((), ["sim-small", "sim-large"]), (("--model", "a", "--model", "b"), ["a", "b"])],
)
def test_the_command_says_which_models_are_listed(options: tuple[str, ...], listed: list[str]) -> None:
    with (
        simulated(*options) as upstream,
        urllib.request.urlopen(f"{upstream.url}/v1/models", timeout=DEADLINE_S) as answer,
    ):
        assert [each["id"] for each in json.load(answer)["data"]] == listed


def test_a_text_that_kills_the_process_ends_it_with_all_connections() -> None:
    with simulated("--crash-on", "poison", "--latency", "3600000") as upstream:
        address = upstream.url.removeprefix("http://").split(":")

        async def test() -> None:
            client = Upstream(address[0], int(address[1]))
            waiting = await client.connect()
            waiting.send(request(chat("harmless")))
            await client.until_received(1)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await client.post(chat("a poisonous line"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await waiting.answer()
            await client.close_clients()

        run(test())
        assert upstream.process.wait(DEADLINE_S) == 137


def test_the_command_refuses_options_that_make_no_sense_together() -> None:
    done = batchline("simulate", "--port", "0", "--max-queue", "3")
    assert done.returncode == 2
    assert "max_queue needs concurrency" in done.stderr
