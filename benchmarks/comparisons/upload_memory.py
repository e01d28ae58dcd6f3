"""Memory of the server during a 2 GB upload.

One POST /v1/files sends 2 GB of lines of 1,000 bytes, generated while they are sent, to `batchline serve`
with limits that allow it. The figure is the peak (VmHWM) of the API process and of the process that parses
the lines, together. A second figure is how much more that is than both need for a file of one line.
PostgreSQL's memory (shared_buffers) is not included, and the worker takes no part.
"""

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import msgspec
import psutil

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series, below
from benchmarks.inputs import MODEL, URL
from benchmarks.serving import Serving, serving, whole

_LIMITS = "[server]\nmax_file_bytes = 4_000_000_000\nmax_lines = 10_000_000\n"
_LINE = 1000
_AT_ONCE = 1000
_HEAD = (
    b'--edge\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--edge\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)
_TAIL = b"\r\n--edge--\r\n"


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(2 * 10**9 // _LINE, quick=20_000)
    config = bench.scratch / "upload-memory.toml"
    config.write_text(_LIMITS)
    options = ("--no-worker", "--upstream", "http://127.0.0.1:9", "--config", str(config))
    with (
        bench.server.database() as url,
        serving(url, bench.scratch / "upload-memory", *options) as server,
    ):
        _upload(server, 1)
        idle = _peaks(server)
        begun = perf_counter()
        _upload(server, lines)
        elapsed = perf_counter() - begun
        peaks = _peaks(server)
    series = [Series(name, "MB", [value]) for name, value in peaks.items()]
    series += [Series(f"{name}, after a file of one line", "MB", [value]) for name, value in idle.items()]
    whole_peak, growth = sum(peaks.values()), sum(peaks.values()) - sum(idle.values())
    size = f"{lines * _LINE / 1e9:g} GB"
    return [
        Figure(
            f"peak memory of the server for an upload of {size}",
            whole_peak,
            "MB",
            below(200),
            series,
            note=f"ingested within {elapsed:.0f} s",
        ),
        Figure("growth of it over a file of one line", growth, "MB", None, []),
    ]


def _upload(server: Serving, lines: int) -> None:
    connection = server.connect()
    headers = {
        **server.headers,
        "content-type": "multipart/form-data; boundary=edge",
        "content-length": str(len(_HEAD) + lines * _LINE + len(_TAIL)),
    }
    connection.request("POST", "/v1/files", _body(lines), headers)
    answer = msgspec.json.decode(whole(connection.getresponse()))
    connection.close()
    assert (answer["status"], answer["bytes"]) == ("processed", lines * _LINE), answer


def _body(lines: int) -> Iterator[bytes]:
    yield _HEAD
    line = b'{"custom_id":"line-%%08d","method":"POST","url":"%s","body":{"model":"%s","prompt":"%s"}}\n'
    room = _LINE - len(line % (URL.encode(), MODEL.encode(), b"") % 0)
    form = line % (URL.encode(), MODEL.encode(), b"x" * room)
    for first in range(0, lines, _AT_ONCE):
        yield b"".join(form % nth for nth in range(first, min(first + _AT_ONCE, lines)))
    yield _TAIL


def _peaks(server: Serving) -> dict[str, float]:
    """Peak memory in MB of the API process and of the process that parses lines."""
    (reader,) = [
        child
        for child in psutil.Process(server.pid).children()
        if "batchline.files.ingest_process" in child.cmdline()
    ]
    return {"API": _peak(server.pid), "reading lines": _peak(reader.pid)}


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
