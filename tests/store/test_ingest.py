"""Files come in whole or not at all, whatever is in them and whoever dies meanwhile, in flat memory."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import LiteralString
from unittest.mock import ANY

import psycopg
import pytest

from batchline.files.ingest import (
    FileRefused,
    Fingerprint,
    InputSource,
    InputUnreadable,
    Sieve,
    check_readable,
    fingerprint,
    ingest,
)
from batchline.files.parsing import Code, LineError, ReadingRules
from batchline.model import File
from batchline.store import arrays, files
from batchline.store.session import Session
from batchline.store.statements import statement
from tests.support.waiting import wait_for

MIB = 2**20
NO_SERVER = "postgresql://nobody@127.0.0.1:1/nothing"


def line(custom_id: str, model: str = "m", url: str = "/v1/chat/completions", extra: str = "") -> bytes:
    return (
        f'{{"custom_id":"{custom_id}","method":"POST","url":"{url}","body":{{"model":"{model}"{extra}}}}}\n'
    ).encode()


def take(
    url: str, *contents: Path | Iterable[bytes] | AsyncIterator[bytes], rules: ReadingRules | None = None
) -> File:
    """Ingests the contents as sources a, b, c … of one file."""
    sources = [InputSource(name, content) for name, content in zip("abc", contents, strict=False)]
    return asyncio.run(ingest(url, sources, tenant="t", filename="input.jsonl", rules=rules))


def refused(url: str, *contents: bytes, rules: ReadingRules | None = None) -> tuple[LineError, ...]:
    with pytest.raises(FileRefused) as caught:
        take(url, *([content] for content in contents), rules=rules)
    assert_nothing_stored(url)
    return caught.value.errors


def rows(url: str, query: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def assert_nothing_stored(url: str) -> None:
    for table in ("files", "file_lanes", "lines"):
        assert rows(url, f"SELECT count(*) FROM batchline.{table}") == [(0,)], f"expected no row in {table}"


def wait_until_nobody_writes(url: str) -> None:
    """Returns when every transaction that has written lines has ended."""
    with psycopg.connect(url, options="-c lock_timeout=120s") as connection:
        connection.execute("LOCK TABLE batchline.lines IN ACCESS EXCLUSIVE MODE")


def test_a_file_is_stored_with_its_lines_and_lanes(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(
        line("one", "x")
        + b"\n"
        + line("two", "y")
        + line("thrée 👩‍🚀", "x", "/v1/responses")
        + line("four", "x")
    )
    file = take(database_url, path)

    assert file == File(ANY, "t", "batch", "input.jsonl", path.stat().st_size, 4, None, ANY, None)
    assert rows(
        database_url, "SELECT lane_no, model, url, total FROM batchline.file_lanes ORDER BY lane_no"
    ) == [
        (0, "x", "/v1/chat/completions", 2),
        (1, "y", "/v1/chat/completions", 1),
        (2, "x", "/v1/responses", 1),
    ]
    stored = rows(
        database_url,
        "SELECT line_no, lane_no, ordinal, custom_id, body"
        " FROM batchline.lines JOIN batchline.files ON no = file_no ORDER BY 1",
    )
    assert stored == [
        (1, 0, 0, "one", '{"model":"x"}'),
        (3, 1, 0, "two", '{"model":"y"}'),
        (4, 2, 0, "thrée 👩‍🚀", '{"model":"x"}'),
        (5, 0, 1, "four", '{"model":"x"}'),
    ]


def test_a_stored_file_is_found_by_id_and_by_the_digest_of_its_paths(
    database_url: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    first.write_bytes(line("1"))
    second.write_bytes(line("2"))
    file = take(database_url, first, second)

    async def look() -> None:
        async with Session(database_url, "test") as session:
            assert await files.get(session, file.id) == file
            assert await files.find(session, "t", fingerprint([first, second]).digest) == file
            assert await files.find(session, "t", fingerprint([second, first]).digest) is None
            assert await files.find(session, "another tenant", fingerprint([first, second]).digest) is None

    asyncio.run(look())


def test_the_digest_depends_on_where_inputs_are_split(tmp_path: Path) -> None:
    for name, content in {"ab": b"ab", "a": b"a", "b": b"b", "none": b""}.items():
        (tmp_path / name).write_bytes(content)
    inputs = [["ab"], ["a", "b"], ["ab", "none"], ["none", "ab"], ["a"], []]
    assert len({fingerprint([tmp_path / name for name in names]).digest for names in inputs}) == len(inputs)


async def test_with_its_fingerprint_a_file_is_not_hashed_again(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(line("1"))
    known = Fingerprint(b"as it is given", fingerprint([path]).versions)
    sources = [InputSource(path.name, path)]
    await ingest(database_url, sources, tenant="t", filename="1.jsonl", known=known)
    assert rows(database_url, "SELECT digest FROM batchline.files") == [(b"as it is given",)]


async def test_a_file_that_has_changed_since_its_fingerprint_is_refused(
    database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "1.jsonl"
    path.write_bytes(line("1"))
    known = fingerprint([path])
    path.write_bytes(line("1") + line("2"))
    sources = [InputSource(path.name, path)]
    with pytest.raises(InputUnreadable, match="changed while it was read"):
        await ingest(database_url, sources, tenant="t", filename="1.jsonl", known=known)
    assert rows(database_url, "SELECT count(*) FROM batchline.files") == [(0,)]


def test_a_body_is_stored_byte_for_byte(database_url: str) -> None:
    body = '{ "model" : "m", "x": ["\\u0000", "\\/é👩‍🚀", 1.50, 1E400, 99999999999999999999] }'
    take(
        database_url,
        [f'{{"custom_id":"a","method":"POST","url":"/v1/responses","body":{body}}}\r\n'.encode()],
    )
    assert rows(database_url, "SELECT body FROM batchline.lines") == [(body,)]


@pytest.mark.parametrize("size", [1, 1000, 10 * MIB])
def test_blocks_of_any_size_from_any_iterable_make_the_same_file(
    database_url: str, tmp_path: Path, size: int
) -> None:
    count = 100 if size == 1 else 5_000
    content = b"".join(line(f"é{n}", f"m{n % 3}") for n in range(count))
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    blocks = [content[start : start + size] for start in range(0, len(content), size)]

    async def arriving() -> AsyncIterator[bytes]:
        for block in blocks:
            yield block

    made = [take(database_url, path), take(database_url, blocks), take(database_url, arriving())]
    assert [file.line_count for file in made] == [count] * 3
    same: LiteralString = """
        SELECT count(*) FROM (
            SELECT lane_no, ordinal, line_no, custom_id, body
            FROM batchline.lines
            GROUP BY lane_no, ordinal, line_no, custom_id, body
            HAVING count(*) = 3
        ) AS line
    """
    assert rows(database_url, same) == [(count,)]
    assert rows(database_url, "SELECT DISTINCT digest FROM batchline.files") == [
        (fingerprint([path]).digest,)
    ]
    assert fingerprint([path]).digest == sha256(sha256(content).digest()).digest()


async def test_progress_is_the_number_of_bytes_read_so_far(database_url: str) -> None:
    content = b"".join(line(str(n)) for n in range(5_000))
    reported: list[int] = []
    await ingest(
        database_url, [InputSource("a", [content])], tenant="t", filename="f", on_progress=reported.append
    )
    assert reported == sorted(reported)
    assert len(reported) > 1
    assert reported[-1] == len(content)


BAD = [
    pytest.param(b"oops\n", Code.INVALID_JSON_LINE, 1, id="not JSON"),
    pytest.param(line("a") + b'{"custom_id":"\xff"}\n', Code.INVALID_UTF8, 2, id="not UTF-8"),
    pytest.param(
        line("a", extra=',"x":' + "[" * 100_000 + "]" * 100_000), Code.INVALID_JSON_LINE, 1, id="nested deep"
    ),
    pytest.param(b"\0\n", Code.INVALID_JSON_LINE, 1, id="NUL byte"),
    pytest.param(line("\\u0000"), Code.INVALID_CUSTOM_ID, 1, id="NUL in custom_id"),
    pytest.param(line("\\ud800"), Code.INVALID_JSON_LINE, 1, id="lone surrogate in custom_id"),
    pytest.param(b"", Code.EMPTY_FILE, None, id="empty"),
    pytest.param(b"\n\r\n \n", Code.EMPTY_FILE, None, id="blank lines only"),
    pytest.param(line("a", url="/v2/other"), Code.INVALID_URL, 1, id="wrong url"),
    pytest.param(line("a", url="http://h/v1/responses"), Code.INVALID_URL, 1, id="absolute url"),
    pytest.param(line("a").replace(b'"model"', b'"x"'), Code.MISSING_REQUIRED_PARAMETER, 1, id="no model"),
    pytest.param(line("a", extra=',"stream":true'), Code.STREAM_NOT_SUPPORTED, 1, id="stream"),
    pytest.param(line("a") + b"\r\n" + line("a"), Code.DUPLICATE_CUSTOM_ID, 3, id="duplicate"),
    pytest.param(
        line("a") + line("\\u0061"), Code.DUPLICATE_CUSTOM_ID, 2, id="duplicate in another spelling"
    ),
]


@pytest.mark.parametrize(("content", "code", "number"), BAD)
def test_bad_input_is_refused_with_its_code_and_leaves_no_row(
    database_url: str, content: bytes, code: Code, number: int | None
) -> None:
    assert [(error.code, error.line) for error in refused(database_url, content)] == [(code, number)]


def test_a_line_of_a_hundred_megabytes_is_refused_and_the_next_ones_are_checked(database_url: str) -> None:
    def content() -> Iterator[bytes]:
        yield line("a") + b'{"custom_id":"'
        for _ in range(100):
            yield b"x" * MIB
        yield b'"}\n' + line("b") + b"oops"

    with pytest.raises(FileRefused) as caught:
        take(database_url, content())
    assert [(error.code, error.line) for error in caught.value.errors] == [
        (Code.LINE_TOO_LONG, 2),
        (Code.INVALID_JSON_LINE, 4),
    ]
    assert_nothing_stored(database_url)


def test_a_line_of_forty_megabytes_is_taken(database_url: str) -> None:
    take(database_url, [line("a", extra=f',"x":"{"x" * (40 * MIB)}"')])
    assert rows(database_url, "SELECT length(body) > 40 * 1024 * 1024 FROM batchline.lines") == [(True,)]


def test_a_custom_id_in_two_sources_is_a_duplicate_that_names_the_first(database_url: str) -> None:
    errors = refused(database_url, line("x") + line("same"), line("y"), b"\n" + line("same"))
    assert [(error.code, error.source, error.line, error.param) for error in errors] == [
        (Code.DUPLICATE_CUSTOM_ID, "c", 2, "custom_id")
    ]
    assert "line 2 of a" in errors[0].message


def test_duplicates_stand_among_the_first_hundred_errors_in_line_order(database_url: str) -> None:
    errors = refused(database_url, b"".join((line("same") if n % 2 else b"oops\n") for n in range(1, 300)))
    assert [error.line for error in errors] == list(range(2, 102))
    assert errors[0].code is Code.INVALID_JSON_LINE
    assert errors[1].code is Code.DUPLICATE_CUSTOM_ID


def test_duplicates_far_apart_are_found(database_url: str) -> None:
    content = b"".join(line(str(n)) for n in range(20_000))
    errors = refused(database_url, content + line("7") + line("x") + line("19999"))
    assert [(error.code, error.line) for error in errors] == [
        (Code.DUPLICATE_CUSTOM_ID, 20_001),
        (Code.DUPLICATE_CUSTOM_ID, 20_003),
    ]


def test_duplicates_are_found_also_when_all_custom_ids_are_suspect(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sieve, "_MAX_SUSPECTS", 1)
    content = b"".join(line(str(n % 90)) for n in range(1, 101))
    assert [error.line for error in refused(database_url, content)] == list(range(91, 101))


def test_the_sieve_suspects_every_duplicate_and_hardly_another() -> None:
    sieve = Sieve()
    sieve.sift([b"request-%d" % n for n in range(100_000)])
    assert sieve.suspects == []
    sieve.sift([b"new", b"request-5", b"new", b"request-99999"])
    assert sieve.suspects is not None
    assert {b"new", b"request-5", b"request-99999"} == set(sieve.suspects)


def test_limits_and_the_endpoint_are_kept(database_url: str) -> None:
    lines = line("a") + line("b", url="/v1/embeddings") + line("c")
    assert refused(database_url, lines, rules=ReadingRules(max_lines=2))[0].code is Code.TOO_MANY_LINES
    assert (
        refused(database_url, lines, rules=ReadingRules(endpoint="/v1/embeddings"))[0].code
        is Code.URL_MISMATCH
    )
    assert (
        refused(database_url, lines, rules=ReadingRules(models=frozenset()))[0].code is Code.MODEL_NOT_FOUND
    )


def test_a_refusal_says_how_many_errors_there_are_and_shows_the_first() -> None:
    error = LineError(Code.INVALID_METHOD, "method must be POST", 3, "method", "a.jsonl")
    assert str(FileRefused([error])) == "a.jsonl, line 3: method must be POST"
    assert str(FileRefused([error] * 2)) == "2 errors, the first in a.jsonl, line 3: method must be POST"
    assert str(FileRefused([error] * 100)).startswith("100 errors or more, the first in a.jsonl, line 3")


@pytest.mark.parametrize("name", ["missing.jsonl", "folder", "missing/in.jsonl", "pipe", "nul\0"])
def test_a_path_that_is_no_readable_file_is_named_before_anything_happens(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "good").write_bytes(line("a"))
    path = tmp_path / name
    with pytest.raises(InputUnreadable) as caught:
        take(NO_SERVER, tmp_path / "good", path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "folder"])
def test_there_is_no_digest_of_what_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputUnreadable, match=name):
        fingerprint([tmp_path / name])


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "secret.jsonl"
    path.write_bytes(line("a"))
    path.chmod(0)
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(65534)
    try:
        with pytest.raises(InputUnreadable, match="permission denied"):
            check_readable([path])
    finally:
        if privileged:
            os.seteuid(0)


@pytest.mark.parametrize("error", [ConnectionResetError("the client went away"), TimeoutError()])
def test_a_stream_that_breaks_leaves_no_row(database_url: str, error: OSError) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield b"".join(line(str(n)) for n in range(5_000))
        raise error

    with pytest.raises(InputUnreadable, match=r"^a cannot be read"):
        take(database_url, breaking())
    assert_nothing_stored(database_url)


async def endless(reached: asyncio.Event, then_wait: bool) -> AsyncIterator[bytes]:
    """Blocks of lines; tells when the twentieth is asked for, and may have no more of them from then on."""
    for start in itertools.count():
        if start == 20:
            reached.set()
            if then_wait:
                await asyncio.Event().wait()
        yield b"".join(line(f"{start}-{n}") for n in range(1_000))


def assert_rolled_back(url: str) -> None:
    # What COPY locks. To lock the table would fail while autovacuum is at it, too.
    held: LiteralString = """
        SELECT count(*) FROM pg_locks
        WHERE locktype = 'relation'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND relation = 'batchline.lines'::regclass
          AND mode = 'RowExclusiveLock'
    """
    assert rows(url, held) == [(0,)]
    assert_nothing_stored(url)


@pytest.mark.parametrize("waiting_for_a_block", [False, True])
async def test_a_cancelled_ingest_has_rolled_back_when_it_returns(
    database_url: str, waiting_for_a_block: bool
) -> None:
    before = set(threading.enumerate())
    reached = asyncio.Event()
    source = InputSource("a", endless(reached, waiting_for_a_block))
    task = asyncio.create_task(ingest(database_url, [source], tenant="t", filename="f"))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(threading.enumerate()) <= before
    assert_rolled_back(database_url)


BLOCKED_BY_A_LOCK = """
    CREATE FUNCTION wait_for_lock() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END';
    CREATE TRIGGER wait_for_lock BEFORE INSERT ON batchline.lines
        FOR EACH ROW EXECUTE FUNCTION wait_for_lock();
"""


async def test_an_ingest_is_cancelled_also_while_the_server_takes_nothing(database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as holder:
        await holder.execute(BLOCKED_BY_A_LOCK)
        await holder.execute("SELECT pg_advisory_lock(1)")
        read = 0

        def note(size: int) -> None:
            nonlocal read
            read = size

        source = InputSource("a", endless(asyncio.Event(), False))
        task = asyncio.create_task(ingest(database_url, [source], tenant="t", filename="f", on_progress=note))
        blocked, before = False, -1
        while not blocked or read != before:
            before = read
            cursor = await holder.execute(
                "SELECT count(*) = 1 FROM pg_stat_activity "
                "WHERE wait_event = 'advisory' AND datname = current_database()"
            )
            blocked = await cursor.fetchone() == (True,)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_rolled_back(database_url)


INGEST_AND_PAUSE = """
import asyncio, signal, sys
from batchline.files.ingest import InputSource, ingest

def content():
    for block in range(20):
        yield b"".join(
            b'{"custom_id":"%d-%d","method":"POST","url":"/v1/responses","body":{"model":"m"}}\\n'
            % (block, n)
            for n in range(2000)
        )
    print("paused", flush=True)
    signal.pause()

asyncio.run(ingest(sys.argv[1], [InputSource("a", content())], tenant="t", filename="f"))
"""


COPIED: LiteralString = (
    "SELECT tuples_processed > 0 FROM pg_stat_progress_copy WHERE datname = current_database()"
)


def test_a_process_killed_in_the_middle_leaves_nothing(database_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INGEST_AND_PAUSE, database_url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "paused\n"
        try:
            # The server may be behind with what it was sent.
            wait_for("lines that are copied", lambda: rows(database_url, COPIED) == [(True,)])
        finally:
            process.send_signal(signal.SIGKILL)
    wait_until_nobody_writes(database_url)
    assert_nothing_stored(database_url)


INGEST_MEGABYTES = """
import asyncio, resource, sys
from batchline.files.ingest import InputSource, ingest

def content(megabytes):
    for block in range(megabytes):
        yield b"".join(
            b'{"custom_id":"%d-%d","method":"POST","url":"/v1/responses","body":{"model":"m","input":"%b"}}\\n'
            % (block, n, b"x" * 150)
            for n in range(4200)
        )

sources = [InputSource("a", content(int(sys.argv[2])))]
file = asyncio.run(ingest(sys.argv[1], sources, tenant="t", filename="f"))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(file.bytes, peak if sys.platform == "darwin" else peak * 1024)
"""


def test_memory_stays_flat_however_large_the_file(database_url: str) -> None:
    def measure(megabytes: int) -> tuple[int, int]:
        command = [sys.executable, "-c", INGEST_MEGABYTES, database_url, str(megabytes)]
        size, peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return int(size), int(peak)

    small, small_peak = measure(10)
    large, large_peak = measure(150)
    assert small < 11 * MIB
    assert large > 140 * MIB
    grown = (large_peak - small_peak) / MIB
    assert grown < 25, f"expected the same peak for 15 times the input, got {grown:.0f} MiB more"


def test_the_look_for_duplicates_reads_the_new_file_only_and_hashes_only_suspects(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        arrays.register(connection)
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(
            "INSERT INTO batchline.lines SELECT 1, 0, n, n, 'id-' || n, '{}' FROM"
            " generate_series(1, 50000) AS n"
        )
        connection.execute("ANALYZE batchline.lines")
        with connection.transaction():
            connection.execute(
                "INSERT INTO batchline.lines SELECT 2, 0, n, n, 'id-' || n % 90, '{}' FROM"
                " generate_series(1, 100) AS n"
            )
            connection.execute(statement("read_by_key").text)
            params = {"file": 2, "limit": 100, "suspects": arrays.TextArray([b"id-1", b"id-2", b"id-50"])}
            text = statement("duplicates_among").text
            plan = "\n".join(row[0] for row in connection.execute("EXPLAIN " + text, params))
            found = connection.execute(text, params).fetchall()
    assert "Seq Scan on lines" not in plan, plan
    assert "hashed SubPlan" in plan, plan
    assert found == [(91, "id-1", 1), (92, "id-2", 2)]
