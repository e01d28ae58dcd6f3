"""Ingesting a CSV file with a prompt template, against a file with the same requests as lines.

Both are ingested as `batchline run` does, fingerprint included, and commit. The bodies in the database are
the same, byte for byte.
"""

import csv
from pathlib import Path

from psycopg import sql

from batchline.files.ingest import ingest
from batchline.files.inputs.input_set import InputOptions, InputSet, find_inputs
from batchline.files.inputs.rendering import RowTemplate
from batchline.files.inputs.spool import Spool
from batchline.model import DEFAULT_TENANT
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.inputs import MODEL, URL
from benchmarks.server import execute
from benchmarks.timing import seconds

_WORDS = "what is said here matters little " * 10
_TEMPLATE = RowTemplate(model=MODEL, prompt="Translate to {{ language }}: {{ text }}", id_column="id")


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(300_000, quick=5_000)
    rows = _found(_write_csv(bench.scratch / "rows.csv", lines), InputOptions(_TEMPLATE))
    requests = _found(_write_requests(bench.scratch / "requests.jsonl", lines), InputOptions())
    with bench.server.database() as url:

        async def rate(inputs: InputSet) -> float:
            execute(url, sql.SQL("TRUNCATE batchline.lines, batchline.files, batchline.file_lanes"))
            bench.server.settle_down()
            return lines / await seconds(take_in(url, inputs))

        ours, envelope = await alternate(
            bench.size(5, quick=1),
            Contestant("CSV with a template", "rows/s", lambda: rate(rows)),
            Contestant("request lines", "rows/s", lambda: rate(requests)),
        )
    for path in (*rows.paths, *requests.paths):
        path.unlink()
    return [ratio(f"rows per second of {lines:,} rows", ours, envelope, at_least(0.25))]


async def take_in(url: str, inputs: InputSet) -> None:
    known = inputs.fingerprint()
    async with inputs.sources() as sources:
        await ingest(url, sources, tenant=DEFAULT_TENANT, filename="rows", known=known)


def _found(path: Path, options: InputOptions) -> InputSet:
    with Spool(lambda: path.parent) as spool:
        return find_inputs([str(path)], options, spool)


def _write_csv(path: Path, lines: int) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "language", "text"])
        writer.writerows([f"line-{nth:08}", "German", f"Line {nth:08}: {_WORDS}"] for nth in range(lines))
    return path


def _write_requests(path: Path, lines: int) -> Path:
    line = (
        '{{"custom_id":"line-{nth:08}","method":"POST","url":"' + URL + '","body":{{"model":"' + MODEL + '",'
        '"messages":[{{"role":"user","content":"Translate to German: Line {nth:08}: ' + _WORDS + '"}}]}}}}\n'
    )
    with path.open("w") as file:
        file.writelines(line.format(nth=nth) for nth in range(lines))
    return path
