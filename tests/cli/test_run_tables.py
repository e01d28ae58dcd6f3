"""`batchline run` and `results`: tables, compressed files, joins, manifests, and following a batch."""

import asyncio
import csv
import gzip
import hashlib
import io
import json
import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from backports import zstd

from tests.support.file_server import CONTENT, SECRET, file_server
from tests.support.processes import (
    PYTHON,
    batchline,
    read_lines,
    simulated,
    start,
    submit,
    working,
    write_requests,
)
from tests.support.scripted_upstream import ANSWER, http, upstream_that
from tests.support.waiting import eventually


@pytest.fixture
def location(database_url: str, tmp_path: Path) -> tuple[str, ...]:
    return ("--database", database_url, "--data-dir", str(tmp_path / "data"))


def ran(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = batchline(*arguments)
    assert done.returncode == code, done.stderr
    return done


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_format_has_all_lines_and_says_which_failed(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 60)
    with simulated("--error-rate", "0.5") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--max-attempts", "1", *location)
        ran(*command, code=1)
        answers = {line["custom_id"]: line for line in read_lines(tmp_path / "in.output.jsonl")}
        failed = [line["custom_id"] for line in read_lines(tmp_path / "in.output.errors.jsonl")]
        assert answers
        assert failed
        reported = ran(*command, "-o", str(tmp_path / "out.csv"), code=1).stdout
        ran(*command, "-o", str(tmp_path / "out.parquet"), code=1)
        piped = ran(*command, "-o", "-", "--format", "csv", code=1).stdout
        only = ran(
            *command, "-o", "-", "--format", "csv", "--errors", str(tmp_path / "e.jsonl"), code=1
        ).stdout
    assert f"{len(failed)} not completed, see {tmp_path / 'out.csv'}" in reported
    assert not (tmp_path / "out.errors.jsonl").exists()
    rows = csv_rows((tmp_path / "out.csv").read_bytes().decode())
    assert [row["custom_id"] for row in rows] == [f"q-{n}" for n in range(60)]
    for row in rows:
        known = answers.get(row["custom_id"])
        assert (row["error"] == "") == (known is not None)
        if known is not None:
            assert row["answer"] == known["response"]["body"]["choices"][0]["message"]["content"]
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [row["answer"] or "" for row in table] == [row["answer"] for row in rows]
    assert csv_rows(piped) == rows
    assert csv_rows(only) == [row for row in rows if not row["error"]]
    assert [line["custom_id"] for line in read_lines(tmp_path / "e.jsonl")] == failed


def test_compressed_lines_are_the_same_lines(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 20)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        ran(*command)
        ran(*command, "-o", str(tmp_path / "out.jsonl.gz"))
        ran(*command, "-o", str(tmp_path / "out.jsonl.zst"))
    plain = (tmp_path / "in.output.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "out.jsonl.gz").read_bytes()) == plain
    assert zstd.decompress((tmp_path / "out.jsonl.zst").read_bytes()) == plain


def test_join_and_select_choose_the_columns(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 5)
    output = tmp_path / "out.jsonl"
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-o", str(output), *location)
        ran(*command, "--join", "--select", "custom_id,error", "--select", "code=response.status_code")
    requests = read_lines(inputs)
    expected = {"error": None, "code": 200}
    assert read_lines(output) == [
        {"url": request["url"], "body": request["body"], "custom_id": request["custom_id"], **expected}
        for request in requests
    ]


def test_a_csv_of_a_url_and_a_file_is_joined_to_its_answers_and_its_manifest_has_no_secret(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    table = tmp_path / "more.csv"
    table.write_text('prompt,note\n"two\nlines",first\n\n=1+1,last\n')
    with file_server() as server, simulated() as upstream:
        url = f"http://me:{SECRET}@{server}/private.csv?key={SECRET}"
        command = ("run", url, str(table), "--upstream", upstream.url, "--model", "m", "--join", *location)
        ran(*command, "-o", str(tmp_path / "out.parquet"))
        ran(*command, "-o", str(tmp_path / "out.csv"))
        assert upstream.stats()["executed"] == 3
    joined = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(row["prompt"], row["note"], row["custom_id"]) for row in joined] == [
        ("hello", None, "row-1"),
        ("two\nlines", "first", "row-2"),
        ("=1+1", "last", "row-4"),
    ]
    assert csv_rows((tmp_path / "out.csv").read_bytes().decode())[2]["prompt"] == "'=1+1"
    manifest = manifest_of(tmp_path / "out.parquet")
    assert SECRET not in json.dumps(manifest)
    assert [(each["name"], each["sha256"], each["bytes"]) for each in manifest["inputs"]] == [
        (f"http://{server}/private.csv", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT)),
        ("more.csv", digest(table), table.stat().st_size),
    ]
    assert manifest["settings"]["rows"]["model"] == "m"


def test_the_default_output_has_the_suffix_of_its_format(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2)
    with simulated() as upstream:
        ran("run", str(inputs), "--upstream", upstream.url, "--format", "csv.gz", *location)
    assert gzip.decompress((tmp_path / "in.output.csv.gz").read_bytes()).startswith(b"custom_id,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "out.xlsx"), "Batchline does not write .xlsx"),
        (("-o", "out.parquet.gz"), "Parquet files are compressed inside"),
        (("--format", "yaml"), "give jsonl, csv or parquet"),
        (("--errors", "e.csv"), "errors are written as JSON Lines"),
        (("--select", "anwser"), "there is no field of this name"),
        (("--follow", "-o", "out.jsonl"), "--follow writes to stdout or a pipe"),
        (("--follow", "--format", "parquet"), "--follow cannot write Parquet"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    tmp_path: Path, location: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    given = [str(tmp_path / each) if each.startswith(("out", "e.")) else each for each in options]
    with simulated() as upstream:
        done = ran("run", str(inputs), "--upstream", upstream.url, *given, *location, code=2)
        assert message in " ".join(done.stderr.split())
        assert upstream.stats()["executed"] == 0


def test_results_of_a_running_batch_can_be_a_table(
    tmp_path: Path, database_url: str, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 30)
    output = tmp_path / "out.parquet"
    with simulated("--error-rate", "0.5") as upstream:
        batch = submit(inputs, upstream.url, "--max-attempts", "1", *location)
        assert ran("results", batch, "--format", "csv", *location).stdout.startswith("custom_id,answer,")
        with working(database_url, tmp_path / "data", "--drain") as worker:
            worker.wait(60)
        reported = ran("results", batch, "-o", str(output), "--select", "answer,error", "--json", *location)
    assert json.loads(reported.stdout) == {"lines": 30, "complete": True, "output": str(output)}
    table = pyarrow.parquet.read_table(output).to_pylist()
    assert len(table) == 30
    assert all((row["answer"] is None) == (row["error"] is not None) for row in table)
    refused = ran("results", batch, "--errors", "--format", "csv", *location, code=2)
    assert "leave --errors out" in refused.stderr


def manifest_of(path: Path) -> Any:
    return json.loads((path.parent / f"{path.name}.manifest.json").read_text())


def test_a_manifest_beside_the_output_has_digests_and_counts_and_no_secret(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 40)
    output, errors = tmp_path / "in.output.jsonl", tmp_path / "in.output.errors.jsonl"
    with simulated("--error-rate", "0.5") as upstream:
        url = upstream.url.replace("http://", "http://user:hunter2@") + "?api-key=hunter2"
        command = ("run", str(inputs), "--upstream", url, "--max-attempts", "1", *location)
        ran(*command, code=1)
        content = (tmp_path / "in.output.jsonl.manifest.json").read_bytes()
        ran(*command, code=1)
    assert (tmp_path / "in.output.jsonl.manifest.json").read_bytes() == content, "again the same"
    assert b"hunter2" not in content
    found = manifest_of(output)
    assert found["settings"]["upstream"] == upstream.url
    assert [(each["name"], each["sha256"]) for each in found["inputs"]] == [("in.jsonl", digest(inputs))]
    lines = (len(read_lines(output)), len(read_lines(errors)))
    assert (found["output"]["sha256"], found["errors"]["sha256"]) == (digest(output), digest(errors))
    assert (found["output"]["rows"], found["errors"]["rows"]) == lines
    assert found["counts"] == {"total": 40, "completed": lines[0], "failed": lines[1], "never_run": 0}


async def test_a_manifest_claims_nothing_about_an_input_that_has_changed(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs, held = write_requests(tmp_path / "in.jsonl", 2), Held(after=2)
    async with (
        upstream_that(held) as upstream,
        running("run", str(inputs), "--upstream", upstream.url, "-c", "1", *location) as process,
    ):
        await held.holds.wait()
        inputs.write_text("changed")
        held.release()
        await process.communicate()
        assert process.returncode == 0
    assert manifest_of(tmp_path / "in.output.jsonl")["inputs"] == []


def test_a_manifest_that_batchline_did_not_write_is_not_replaced(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 1)
    mine = tmp_path / "in.output.jsonl.manifest.json"
    mine.write_text("mine")
    with simulated() as upstream:
        done = ran("run", str(inputs), "--upstream", upstream.url, *location, code=2)
        assert upstream.stats()["executed"] == 0
    assert str(mine) in done.stderr
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("follow", [False, True])
async def test_an_input_that_changes_while_the_batch_runs_is_not_joined(
    tmp_path: Path, location: tuple[str, ...], follow: bool
) -> None:
    inputs, held = tmp_path / "in.csv", Held(after=2)
    inputs.write_text("text\na\nb\nc\n")
    output = ("--follow", "--format", "csv") if follow else ("-o", str(tmp_path / "out.csv"))
    async with upstream_that(held) as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "--model", "m", "--prompt", "{{text}}")
        async with running(*command, "-c", "1", "--join", *output, *location) as process:
            await held.holds.wait()
            inputs.write_text("text\nnew\na\nb\nc\n")
            held.release()
            _, said = await process.communicate()
            assert process.returncode == 1
    assert b"in.csv has changed since its lines were sent" in said
    assert not (tmp_path / "out.csv").exists()
    inputs.write_text("text\na\nb\nc\n")
    again = ran(*command, "--join", "-o", str(tmp_path / "out.csv"), *location)
    assert "finished before" in again.stdout
    rows = csv_rows((tmp_path / "out.csv").read_text())
    assert [(row["text"], row["custom_id"]) for row in rows] == [
        ("a", "row-1"),
        ("b", "row-2"),
        ("c", "row-3"),
    ]


def test_a_followed_batch_stops_when_its_reader_has_left(tmp_path: Path, location: tuple[str, ...]) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2_000)
    with simulated("--latency", "20") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location, "--follow")
        process = start(*command)
        assert process.stdout is not None
        assert process.stderr is not None
        assert "q-0" in process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        process.stderr.close()
        assert process.wait() == 1
        assert upstream.stats()["executed"] < 2_000
    assert "the reader of stdout has left; batch_" in said
    assert "has stopped, nothing is lost; continue with\n  batchline run " in said


def test_a_run_whose_progress_nobody_reads_stops_and_says_how_to_continue(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 2_000)
    with simulated("--latency", "20") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, "-c", "4", *location)
        process = start(*command)
        assert process.stdout is not None
        assert process.stderr is not None
        assert "2,000 lines" in process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        process.stderr.close()
        assert process.wait() == 1
        assert upstream.stats()["executed"] < 2_000
    assert said.endswith(
        "error: the reader of stdout has left; nothing is lost; continue with\n"
        f"  batchline {shlex.join(command)}\n"
    )


def test_a_table_of_an_expression_that_fails_on_some_lines_has_all_others(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    inputs = write_requests(tmp_path / "in.jsonl", 3)
    with simulated() as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        ran(*command)
        lines = (tmp_path / "in.output.jsonl").read_bytes()
        done = ran(*command, "--select", "custom_id", "--select", "n=length(response.body.nope)")
    assert "warning: --select n is empty in 3 completed lines; the first is line q-0: " in done.stderr
    assert len(read_lines(tmp_path / "in.table.jsonl")) == 3
    assert (tmp_path / "in.output.jsonl").read_bytes() == lines, "a table does not replace the output lines"


@pytest.mark.parametrize("format", ["jsonl", "csv"])
async def test_follow_gives_lines_while_the_batch_runs_and_in_the_end_the_same_output(
    tmp_path: Path, location: tuple[str, ...], format: str
) -> None:
    inputs, held = write_requests(tmp_path / "in.jsonl", 20), Held(after=4)
    async with upstream_that(held) as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location)
        async with running(*command, "--follow", "--format", format, "-c", "1") as process:
            assert process.stdout is not None
            await held.holds.wait()
            first = await process.stdout.readline() + await process.stdout.readline()
            assert len(upstream.requests) == 5, "the batch should still run"
            held.release()
            rest, _ = await process.communicate()
            assert process.returncode == 0
    again = ran(*command, "-o", "-", "--format", format).stdout
    # Python has made one line feed of each end of a line.
    assert (first + rest).decode().replace("\r\n", "\n") == again
    assert "q-19" in again


async def test_a_reader_of_a_followed_batch_that_reads_nothing_does_not_stop_the_work(
    tmp_path: Path, location: tuple[str, ...]
) -> None:
    """The lines are more than a pipe holds."""
    inputs = write_requests(tmp_path / "in.jsonl", 300)
    with simulated("--answer-bytes", "2000") as upstream:
        command = ("run", str(inputs), "--upstream", upstream.url, *location, "--follow")
        async with running(*command) as process:
            await eventually("all requests", lambda: upstream.stats()["executed"] == 300)
            lines, _ = await process.communicate()
    assert process.returncode == 0
    assert [json.loads(line)["custom_id"] for line in lines.splitlines()] == [f"q-{n}" for n in range(300)]


class Held:
    """Answers the first requests at once, and the others when it is released."""

    def __init__(self, after: int) -> None:
        self._left = after
        self._waiting: list[asyncio.Transport] = []
        self.holds = asyncio.Event()

    def __call__(self, transport: asyncio.Transport) -> None:
        if self._left > 0:
            self._left -= 1
            transport.write(http(200, json.dumps(ANSWER).encode()))
        else:
            self._waiting.append(transport)
            self.holds.set()

    def release(self) -> None:
        self._left = 10**6
        for transport in self._waiting:
            self(transport)


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        PYTHON,
        "-m",
        "batchline",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
