"""Response time of a batch's status while two large batches run.

`batchline serve` with its own worker sends to `batchline simulate`, which answers at once. All of them share
the machine's cores with PostgreSQL, and nothing limits the worker. A client with one connection requests each
of the two batches in turn, with a key, and after each /healthz, which does no work: that is the cost of the
process, the network and the scheduler at that moment. The client measures from the first byte sent to the
last byte read, from the creation of the batches until both have ended.
"""

import time
from http.client import HTTPConnection
from time import perf_counter

import msgspec

from batchline.model import ids
from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, below
from benchmarks.inputs import URL, fill_file
from benchmarks.processes import simulator
from benchmarks.serving import Serving, serving, whole

_ENDED = {"completed", "failed", "expired", "cancelled"}
# Seconds between two requests: a client without pauses would itself load the server.
_PAUSE = 0.005


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(100_000, quick=2_000)
    with bench.server.database() as url, simulator() as upstream:
        files = [ids.show(ids.FILE, fill_file(url, lines)) for _ in range(2)]
        bench.server.settle_down()
        with serving(url, bench.scratch / "polling", "--upstream", upstream) as server:
            polls, floor = _poll(server, files)
    count = f"{len(polls.values):,} questions"
    return [
        Figure(
            f"GET /v1/batches/{{id}} while two batches of {lines:,} lines run, 99th percentile",
            polls.percentile(99),
            "ms",
            below(50),
            [polls, floor],
            note=count,
        ),
        Figure("the floor, GET /healthz, 99th percentile", floor.percentile(99), "ms", None, [floor]),
    ]


def _poll(server: Serving, files: list[str]) -> tuple[Series, Series]:
    polls: list[float] = []
    floor: list[float] = []
    connection = server.connect()
    running = [_create(connection, server, file_id) for file_id in files]
    while running:
        for batch_id in list(running):
            elapsed, body = _requested(connection, f"/v1/batches/{batch_id}", server.headers)
            polls.append(elapsed)
            if msgspec.json.decode(body)["status"] in _ENDED:
                running.remove(batch_id)
            time.sleep(_PAUSE)
            floor.append(_requested(connection, "/healthz", {})[0])
            time.sleep(_PAUSE)
    connection.close()
    return Series("GET /v1/batches/{id}", "ms", polls), Series("GET /healthz", "ms", floor)


def _create(connection: HTTPConnection, server: Serving, file_id: str) -> str:
    requested = {"input_file_id": file_id, "endpoint": URL, "completion_window": "24h"}
    headers = {**server.headers, "content-type": "application/json"}
    connection.request("POST", "/v1/batches", msgspec.json.encode(requested), headers)
    batch_id: str = msgspec.json.decode(whole(connection.getresponse()))["id"]
    return batch_id


def _requested(connection: HTTPConnection, path: str, headers: dict[str, str]) -> tuple[float, bytes]:
    begun = perf_counter()
    connection.request("GET", path, headers=headers)
    body = whole(connection.getresponse())
    return 1000 * (perf_counter() - begun), body
