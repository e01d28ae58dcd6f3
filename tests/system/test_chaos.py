"""The chaos harness itself: it strikes as its seed says, and its checker finds what is planted."""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from batchline.model.ids import new_id
from batchline.simulate import answer_to
from batchline.simulate.http import stop_listening
from batchline.store.session import Session
from chaos import evidence, inputs, report
from chaos.checker import ChaosFinding, CheckedBatch, FindingKind, check, check_displayed
from chaos.clients import Displayed, Placed
from chaos.disk import Disk
from chaos.ledger import LedgerEntry, LedgerEvent
from chaos.processes import Member
from chaos.proxy import Proxy
from chaos.round import RoundOutcome
from chaos.schedule import (
    ATTEMPTS,
    EVERYBODY,
    OF_AN_ORDER,
    STORM,
    BatchOrder,
    Fault,
    Stroke,
    orders_of,
    schedule,
)
from chaos.upstream import PADDINGS, REFUSED, FaultyUpstream
from tests.support.builders import a_batch, a_worker, sql, take
from tests.support.waiting import wait_for

# The schedule


def test_a_seed_and_a_round_always_give_the_same_schedule() -> None:
    command = [sys.executable, "-m", "chaos", "--seed", "42", "--round", "3", "--workers", "5", "--schedule"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == str(schedule(42, 3, 5))


def test_other_seeds_and_rounds_give_other_schedules() -> None:
    plans = {str(schedule(seed, number, 4)).partition("\n")[2] for seed in range(5) for number in range(1, 6)}
    assert len(plans) == 25


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_of_fault_is_in_every_round_and_hits_a_running_process(seed: int) -> None:
    plan = schedule(seed, 1, 3)
    assert {stroke.fault for stroke in plan.strokes} == set(Fault) - {Fault.DEADLINE}
    for stroke in plan.strokes:
        assert 0 <= stroke.at < STORM
        concerned = len(plan.orders) if stroke.fault in OF_AN_ORDER else 3
        assert stroke.whom == EVERYBODY or 0 <= stroke.whom < concerned


def test_a_schedule_may_be_of_some_faults_only() -> None:
    plan = schedule(1, 1, 3, (Fault.FLOOD, Fault.STARVE))
    assert {stroke.fault for stroke in plan.strokes} == {Fault.FLOOD, Fault.STARVE}
    options = ["--seed", "1", "--workers", "3", "--only", "flood", "--only", "starve", "--schedule"]
    command = [sys.executable, "-m", "chaos", *options]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.strip() == str(plan)


def test_a_flood_and_a_starving_upstream_bring_batches_of_their_own() -> None:
    flood = orders_of(Stroke(3.0, Fault.FLOOD, EVERYBODY, 2.0, 12.0), "o")
    assert len({order.name for order in flood}) == 12
    assert {order.tenant for order in flood} == {"flood"}
    (starving,) = orders_of(Stroke(3.0, Fault.STARVE, EVERYBODY, 2.0, 0.2), "o")
    assert starving.starving
    assert orders_of(Stroke(3.0, Fault.CUT, EVERYBODY, 0.0, 0.0), "o") == []


# The database's disk


def test_a_disk_that_is_full_takes_next_to_nothing_until_there_is_room(tmp_path: Path) -> None:
    disk = Disk.at(tmp_path / "disk")
    try:
        (disk.folder / "before").write_bytes(b"x" * 1_000_000)
        if not disk.fill():
            pytest.skip("no file system can be mounted here")
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "while").write_bytes(b"x" * 1_000_000)
        disk.free()
        (disk.folder / "after").write_bytes(b"x" * 1_000_000)
    finally:
        disk.unmount()


def test_a_disk_that_cannot_be_mounted_fails_where_no_fault_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BATCHLINE_TEST_REQUIRE_EXTERNAL", raising=False)
    assert not Disk.at(tmp_path / "folder").fill()
    monkeypatch.setenv("BATCHLINE_TEST_REQUIRE_EXTERNAL", "1")
    with pytest.raises(OSError, match="cannot mount a disk"):
        Disk.at(tmp_path / "disk")


# The proxy


@asynccontextmanager
async def echoing(folder: Path) -> AsyncIterator[tuple[Proxy, set[asyncio.StreamWriter]]]:
    """A server that says what it hears, behind a proxy, and the connections that the server has."""
    served: set[asyncio.StreamWriter] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(writer)
        try:
            while data := await reader.read(1000):
                writer.write(data)
        finally:
            served.discard(writer)
            writer.close()

    server = await asyncio.start_unix_server(echo, folder / "echo")
    proxy = Proxy(folder / "echo")
    await proxy.start()
    try:
        yield proxy, served
    finally:
        await proxy.stop()
        await stop_listening(server)
        await until(lambda: not served)


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(proxy: Proxy) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def said_back(connection: Connection) -> bytes:
    reader, writer = connection
    writer.write(b"hello")
    return await reader.readexactly(5)


async def until(fact: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, "a fact", fact)


async def test_the_proxy_passes_on_data_and_the_end_of_a_connection(tmp_path: Path) -> None:
    async with echoing(tmp_path) as (proxy, served):
        async with connected(proxy) as connection:
            assert await said_back(connection) == b"hello"
            assert len(served) == proxy.links == 1
        await until(lambda: not served and not proxy.links)


async def test_a_cut_connection_is_reset_on_both_sides_and_a_new_one_works(tmp_path: Path) -> None:
    async with echoing(tmp_path) as (proxy, served):
        async with connected(proxy) as connection:
            await said_back(connection)
            assert proxy.cut() == 1
            with pytest.raises(ConnectionResetError):
                await connection[0].readexactly(1)
            await until(lambda: not served)
        async with connected(proxy) as connection:
            assert await said_back(connection) == b"hello"


async def test_a_delayed_connection_takes_its_time_in_both_directions(tmp_path: Path) -> None:
    async with echoing(tmp_path) as (proxy, _), connected(proxy) as connection:
        await said_back(connection)
        proxy.delay = 0.1
        begun = asyncio.get_running_loop().time()
        await said_back(connection)
        assert asyncio.get_running_loop().time() - begun >= 0.2


async def test_a_half_open_connection_is_silent_and_its_server_does_not_notice(tmp_path: Path) -> None:
    async with echoing(tmp_path) as (proxy, served):
        async with connected(proxy) as connection:
            await said_back(connection)
            assert proxy.open_half() == 1
            connection[1].write(b"hello")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(connection[0].read(1), 0.1)
            async with connected(proxy) as other:
                assert await said_back(other) == b"hello", "new connections are not concerned"
            await until(lambda: len(served) == 1)
        async with connected(proxy) as other:
            # By now the proxy has seen that the client of the first one has gone.
            assert await said_back(other) == b"hello"
            assert len(served) == 2, "the server is not told that its client has gone"
            proxy.heal()
            assert await said_back(other) == b"hello"
            assert len(served) == 2, "not even now"
            proxy.forget()
            await until(lambda: len(served) == 1)
            assert await said_back(other) == b"hello"


async def test_a_deaf_proxy_swallows_new_connections_too(tmp_path: Path) -> None:
    async with echoing(tmp_path) as (proxy, served):
        proxy.open_half(deaf=True)
        async with connected(proxy) as (reader, writer):
            writer.write(b"hello")
            await until(lambda: proxy.links == 1)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            assert not served
            proxy.heal()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)


# The upstream


@asynccontextmanager
async def upstream() -> AsyncIterator[FaultyUpstream]:
    running = FaultyUpstream(seed=1)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()


async def test_an_oversized_answer_is_the_same_answer_and_megabytes_more() -> None:
    async with upstream() as running:
        usual = await sent(running, "b-1-1")
        running.be(Fault.OVERSIZED, 1.0)
        body = (await sent(running, "b-1-1")).partition(b"\r\n\r\n")[2]
        given = msgspec.json.decode(body)
        assert len(given.pop("padding")) in PADDINGS
        assert given == msgspec.json.decode(usual.partition(b"\r\n\r\n")[2])
        assert running.ledger.entries["b-1-1"].events[LedgerEvent.OVERSIZED] == 1


async def test_only_the_other_upstream_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.upstream.TIMEOUT", 0.5)
    async with upstream() as running:
        running.be(Fault.STARVE, 0.1)
        assert b"HTTP/1.1 429 " in await sent(running, url=running.starving_url, key="b-1-1")
        assert b"HTTP/1.1 200 " in await sent(running, "b-2-1")
        running.be(Fault.STARVE, 0.9)
        assert b"HTTP/1.1 200 " in await sent(running, url=running.starving_url, key="b-3-1")
        running.heal()
        assert b"HTTP/1.1 200 " in await sent(running, url=running.starving_url, key="b-1-1")
        assert running.ledger.entries["b-1-1"].runs == 1


async def test_an_upstream_that_restarts_loses_what_is_in_flight_and_keeps_its_address() -> None:
    async with upstream() as running:
        running.be(Fault.CAPACITY, 0.0)
        asking = asyncio.create_task(sent(running, "b-1-1"))
        await until(lambda: running.in_flight == 1)
        await running.go_down()
        with suppress(ConnectionResetError):
            assert await asking == b""
        with pytest.raises(ConnectionRefusedError):
            await sent(running, "b-1-1")
        running.heal()
        await running.come_up()
        assert b" 200 OK" in await sent(running, "b-1-1")
        entry = running.ledger.entries["b-1-1"]
        assert (entry.requests, entry.runs, entry.events[LedgerEvent.DROPPED]) == (2, 1, 1)


async def test_an_upstream_of_little_capacity_runs_the_others_later() -> None:
    async with upstream() as running:
        running.be(Fault.CAPACITY, 0.0)
        asking = [asyncio.create_task(sent(running, f"b-{number}-1")) for number in range(1, 4)]
        await until(lambda: running.in_flight == 3)
        assert len(running._runs) == 0
        running.be(Fault.CAPACITY, 1.0)
        assert len(running._runs) == 1
        assert all(b" 200 OK" in answer for answer in await asyncio.gather(*asking))
        assert [entry.runs for entry in running.ledger.entries.values()] == [1, 1, 1]


async def sent(running: FaultyUpstream, key: str, content: str = "hello", url: str | None = None) -> bytes:
    """All that is answered to one request, on a connection of its own."""
    port = int(re.findall(r":(\d+)/", url or running.url)[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": content}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: {key}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_the_upstream_runs_a_key_once_and_says_under_which_key_it_answers() -> None:
    async with upstream() as running:
        first, second = await sent(running, "b-1-1"), await sent(running, "b-1-1")
        assert first == second
        assert b"x-request-id: b-1-1" in first
        entry = running.ledger.entries["b-1-1"]
        assert (entry.requests, entry.runs, entry.twice, entry.spent) == (2, 1, False, False)


async def test_an_upstream_that_forgets_a_key_has_itself_to_blame() -> None:
    async with upstream() as running:
        await sent(running, "b-1-1")
        running.be(Fault.FORGET, 1.0)
        await sent(running, "b-1-1")
        entry = running.ledger.entries["b-1-1"]
        assert (entry.runs, entry.forgotten, entry.twice) == (2, 1, False)


async def test_the_upstream_fails_as_set_and_records_it() -> None:
    async with upstream() as running:
        running.be(Fault.DROP, 1.0)
        assert await sent(running, "b-1-1") == b""
        assert running.ledger.entries["b-1-1"].events[LedgerEvent.DROPPED] == 1
        running.heal()
        running.be(Fault.REFUSE, 1.0)
        assert re.match(rb"HTTP/1.1 (429|500|503) ", await sent(running, "b-2-1"))
        assert running.ledger.entries["b-2-1"].spent
        running.heal()
        running.be(Fault.HANG, 1.0)
        hanging = asyncio.create_task(sent(running, "b-3-1"))
        await until(lambda: "b-3-1" in running.ledger.entries)
        assert running.ledger.entries["b-3-1"].events[LedgerEvent.HUNG] == 1
        assert await asyncio.wait([hanging], timeout=0.2) == (set(), {hanging})
        hanging.cancel()
        await asyncio.wait([hanging])
        running.heal()
        assert b"HTTP/1.1 400 " in await sent(running, "b-4-1", REFUSED)


async def test_a_late_answer_comes_twice_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.upstream.TIMEOUT", 0.5)
    async with upstream() as running:
        running.be(Fault.LATE, 1.0)
        said = await sent(running, "b-1-1")
        assert said.count(b"HTTP/1.1 200 OK") == said.count(b"x-request-id: b-1-1") == 2


# Processes


async def test_a_process_that_is_killed_comes_back_and_stops_though_it_is_frozen(tmp_path: Path) -> None:
    member = Member("one", ["simulate", "--port", "0"], tmp_path / "log")
    member.start()
    await until(lambda: member.started == 1)
    assert member.kill(0.0)
    await until(lambda: member.started == 2)
    assert member.freeze()
    await member.stop()
    assert not member.tracebacks


async def test_a_process_that_falls_over_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fallen = tmp_path / "fallen"
    fallen.write_text("#!/bin/sh\necho 'Traceback (most recent call last):' >&2\n")
    fallen.chmod(0o755)
    monkeypatch.setattr("chaos.processes.sys.executable", str(fallen))
    member = Member("one", [], tmp_path / "log")
    member.start()
    await until(lambda: bool(member.tracebacks))
    await member.stop()


def test_a_shifted_clock_is_what_batchline_sees() -> None:
    displayed = (
        "import chaos.shifted, time; real = time.time(); chaos.shifted.shift(3600, 1.05)\n"
        "from batchline.model.ids import new_id; from batchline.worker.clock import steady\n"
        "a = time.perf_counter(), steady(), time.perf_counter(); time.sleep(0.4)\n"
        "b = time.perf_counter(), steady(), time.perf_counter()\n"
        "print((new_id().int >> 80) / 1000 - real, b[1] - a[1], b[0] - a[2], b[2] - a[0])"
    )
    said = subprocess.run(
        [sys.executable, "-c", displayed], capture_output=True, text=True, check=True, timeout=60
    )
    ahead, passed, shortest, longest = (float(figure) for figure in said.stdout.split())
    assert ahead == pytest.approx(3600, abs=60)
    # The clocks cannot be read at the same moment.
    assert 1.049 * shortest <= passed <= 1.051 * longest


# The checker

RequestLedger = dict[str, LedgerEntry]
ORDER = BatchOrder("o", 0.0, 20, ("m",), every_bad=5, window="24h", through="engine")


def a_finished_round(
    order: BatchOrder = ORDER, status: str = "completed"
) -> tuple[Placed, CheckedBatch, RequestLedger]:
    """One batch whose good lines were answered and whose bad ones were refused, at the first attempt."""
    batch_id = new_id()
    ledger: RequestLedger = {}
    output: list[Any] = []
    errors: list[Any] = []
    used = Counter[str]()
    for number, line in enumerate(inputs.lines(order), start=1):
        key = f"{batch_id.hex}-{number}-1"
        entry = ledger[key] = LedgerEntry(msgspec.json.encode(line.body), requests=1)
        entry.statuses[400 if line.bad else 200] += 1
        entry.runs = 0 if line.bad else 1
        body: Any = {"error": {}} if line.bad else msgspec.json.decode(answer_to(inputs.URL, entry.body))
        response = {"status_code": 400 if line.bad else 200, "request_id": key, "body": body}
        row = {"id": f"batch_req_{batch_id.hex}_{number}", "custom_id": line.custom_id, "response": response}
        (errors if line.bad else output).append({**row, "error": None})
        if not line.bad:
            used.update(input=body["usage"]["prompt_tokens"], output=body["usage"]["completion_tokens"])
    lines = msgspec.json.Encoder().encode_lines
    batch = CheckedBatch(
        id=batch_id,
        status=status,
        total=order.lines,
        completed=len(output),
        failed=len(errors),
        input_tokens=used["input"],
        output_tokens=used["output"],
        output=lines(output),
        errors=lines(errors),
    )
    return Placed(order, batch_id), batch, ledger


def found(placed: Placed, batch: CheckedBatch, ledger: RequestLedger) -> list[ChaosFinding]:
    return check([placed], {batch.id: batch}, ledger)[1]


def kinds(placed: Placed, batch: CheckedBatch, ledger: RequestLedger) -> set[FindingKind]:
    return {finding.kind for finding in found(placed, batch, ledger)}


def without_line(lines: bytes, number: int) -> bytes:
    kept = lines.splitlines(keepends=True)
    return b"".join(kept[:number] + kept[number + 1 :])


def key_of(batch: CheckedBatch, number: int, attempt: int = 1) -> str:
    return f"{batch.id.hex}-{number}-{attempt}"


def test_a_round_in_which_all_is_well_gives_no_finding() -> None:
    placed, batch, ledger = a_finished_round()
    tally, findings = check([placed], {batch.id: batch}, ledger)
    assert findings == []
    assert (tally.completed, tally.failed, tally.runs, tally.resent) == (16, 4, 16, 0)


def test_a_lost_line_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    shorter = replace(batch, output=without_line(batch.output, 3), completed=batch.completed - 1)
    assert FindingKind.LOST in kinds(placed, shorter, ledger)


def test_a_doubled_line_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    first = batch.output.splitlines(keepends=True)[0]
    assert FindingKind.DOUBLED in kinds(placed, replace(batch, output=first + batch.output), ledger)


def test_a_line_in_both_files_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    first = batch.output.splitlines(keepends=True)[0]
    assert FindingKind.DOUBLED in kinds(placed, replace(batch, errors=first + batch.errors), ledger)


@pytest.mark.parametrize("counter", ["total", "completed", "failed", "input_tokens", "output_tokens"])
def test_a_wrong_counter_is_found(counter: str) -> None:
    placed, batch, ledger = a_finished_round()
    wrong = replace(batch, **{counter: getattr(batch, counter) + 1})
    assert kinds(placed, wrong, ledger) == {FindingKind.WRONG}


def test_lines_out_of_order_are_found() -> None:
    placed, batch, ledger = a_finished_round()
    turned = b"".join(reversed(batch.output.splitlines(keepends=True)))
    assert kinds(placed, replace(batch, output=turned), ledger) == {FindingKind.WRONG}


def test_an_answer_that_the_upstream_never_gave_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    ledger[key_of(batch, 1)].runs = 0
    assert kinds(placed, batch, ledger) == {FindingKind.WRONG}


def test_the_answer_of_another_line_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    rows = [msgspec.json.decode(line) for line in batch.output.splitlines()]
    rows[0]["response"]["body"], rows[1]["response"]["body"] = (
        rows[1]["response"]["body"],
        rows[0]["response"]["body"],
    )
    mixed = replace(batch, output=msgspec.json.Encoder().encode_lines(rows))
    assert kinds(placed, mixed, ledger) == {FindingKind.WRONG}


def test_a_padded_answer_is_right_and_a_cut_one_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    rows = [msgspec.json.decode(line) for line in batch.output.splitlines()]
    rows[0]["response"]["body"]["padding"] = "x" * PADDINGS[0]
    whole = replace(batch, output=msgspec.json.Encoder().encode_lines(rows))
    assert kinds(placed, whole, ledger) == set()
    rows[0]["response"]["body"]["padding"] = "x" * (PADDINGS[0] - 1)
    cut = replace(batch, output=msgspec.json.Encoder().encode_lines(rows))
    assert kinds(placed, cut, ledger) == {FindingKind.WRONG}


def test_a_line_may_fail_for_its_size_only_if_the_answer_was_oversized() -> None:
    placed, batch, ledger = a_finished_round()
    rows = [msgspec.json.decode(line) for line in batch.errors.splitlines()]
    rows[0].update(response=None, error={"code": "response_too_large", "message": ""})
    failed = replace(batch, errors=msgspec.json.Encoder().encode_lines(rows))
    assert kinds(placed, failed, ledger) == {FindingKind.WRONG}
    number = int(rows[0]["id"].rpartition("_")[2])
    ledger[key_of(batch, number)].events[LedgerEvent.OVERSIZED] += 1
    assert kinds(placed, failed, ledger) == set()


def test_a_key_that_was_run_twice_is_found_unless_the_upstream_broke_its_rule() -> None:
    placed, batch, ledger = a_finished_round()
    entry = ledger[key_of(batch, 1)]
    entry.runs = 2
    assert kinds(placed, batch, ledger) == {FindingKind.DOUBLED}
    entry.forgotten = 1
    assert kinds(placed, batch, ledger) == set()


def test_a_second_attempt_without_a_reason_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    first = ledger[key_of(batch, 1)]
    ledger[key_of(batch, 1, 2)] = LedgerEntry(first.body, requests=1, runs=1)
    assert kinds(placed, batch, ledger) == {FindingKind.DOUBLED}
    first.events[LedgerEvent.DROPPED] += 1
    assert kinds(placed, batch, ledger) == set()


def test_an_attempt_that_was_used_up_without_being_sent_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    ledger[key_of(batch, 1, 3)] = LedgerEntry(ledger[key_of(batch, 1)].body, requests=1, runs=1)
    assert kinds(placed, batch, ledger) == {FindingKind.WRONG}


def test_a_key_with_another_body_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    ledger[key_of(batch, 2)].strange = 1
    assert kinds(placed, batch, ledger) == {FindingKind.WRONG}


@pytest.mark.parametrize(
    "key", ["", "no key at all", f"{new_id().hex}-1-1"], ids=["empty", "not a key", "of no batch"]
)
def test_an_idempotency_key_of_no_item_is_found(key: str) -> None:
    placed, batch, ledger = a_finished_round()
    assert kinds(placed, batch, {**ledger, key: LedgerEntry(b"")}) == {FindingKind.WRONG}


def test_a_failure_that_the_upstream_knows_nothing_of_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    rows = [msgspec.json.decode(line) for line in batch.errors.splitlines()]
    rows[0].update(response=None, error={"code": "timeout", "message": ""})
    unknown = replace(batch, errors=msgspec.json.Encoder().encode_lines(rows))
    assert kinds(placed, unknown, ledger) == {FindingKind.WRONG}
    number = int(rows[0]["id"].rpartition("_")[2])
    for attempt in range(1, ATTEMPTS + 1):
        body = ledger[key_of(batch, number)].body
        hung = ledger[key_of(batch, number, attempt)] = LedgerEntry(body, requests=1)
        hung.events[LedgerEvent.HUNG] += 1
    assert kinds(placed, unknown, ledger) == set()


@pytest.mark.parametrize("status", ["not at its end", "failed", "cancelled", "expired"])
def test_an_unrequested_end_is_found(status: str) -> None:
    assert kinds(*a_finished_round(status=status)) == {FindingKind.WRONG}


def test_a_cancel_that_was_confirmed_and_did_not_come_is_found() -> None:
    placed, batch, ledger = a_finished_round()
    placed.cancel_requested = True
    assert kinds(placed, batch, ledger) == set(), "asked, but not confirmed: it may have come too late"
    placed.cancelled = True
    assert kinds(placed, batch, ledger) == {FindingKind.WRONG}
    assert kinds(placed, replace(batch, status="cancelled"), ledger) == set()


def test_a_lost_order_and_a_duplicate_order_are_found() -> None:
    placed, batch, ledger = a_finished_round()
    other: UUID = new_id()
    twice = {batch.id: batch, other: replace(batch, id=other)}
    assert {finding.kind for finding in check([placed], twice, ledger)[1]} == {FindingKind.DOUBLED}
    assert FindingKind.LOST in {finding.kind for finding in check([placed], {}, {})[1]}


def test_a_server_that_gives_out_something_else_is_found() -> None:
    _, batch, _ = a_finished_round()
    counts = (batch.total, batch.completed, batch.failed)
    displayed = Displayed(batch.status, counts, batch.output, batch.errors)
    assert check_displayed(batch, displayed) == []
    assert len(check_displayed(batch, replace(displayed, status="expired", counts=(0, 0, 0)))) == 2
    assert len(check_displayed(batch, replace(displayed, output=b"", errors=b""))) == 2


# What is left over


async def test_what_a_round_must_not_leave_behind_is_found(database_url: str, db: Session) -> None:
    assert evidence.left_over(database_url) == []
    assert evidence.unfinished(database_url) == 0
    await a_batch(db, {"m": 3})
    await take(db, a_worker(), 2)
    left = {finding.what for finding in evidence.left_over(database_url)}
    assert left == {"1 spans", "1 batches that have not ended", "1 leases that hold spans"}
    assert evidence.unfinished(database_url) == 1


async def test_an_unrecorded_object_and_a_missing_object_are_found(
    database_url: str, db: Session, tmp_path: Path
) -> None:
    batch = await a_batch(db, {"m": 1})
    await sql(db, f"UPDATE batchline.files SET object_key = 'inputs/one' WHERE id = '{batch.file_id}'")
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "one").touch()
    assert evidence.unrecorded_objects(database_url, tmp_path) == []
    (tmp_path / "inputs" / "one").rename(tmp_path / "inputs" / "one#1")
    found = evidence.unrecorded_objects(database_url, tmp_path)
    assert [finding.kind for finding in found] == [FindingKind.WRONG, FindingKind.LOST]


# The report


def test_the_page_lists_faults_and_findings_of_all_rounds(tmp_path: Path) -> None:
    outcome = RoundOutcome(schedule(3, 1, 2))
    outcome.faults[Fault.KILL_WORKER] = 2
    outcome.tally.completed = 1234
    outcome.findings.append(ChaosFinding(FindingKind.LOST, "order 1", "line 7 has no outcome"))
    about = {"date": "today", "command": "python -m chaos", "seed": 3, "workers": 2, "minutes": 1.0}
    results = report.sum_up([outcome, RoundOutcome(schedule(3, 2, 2))], **about, machine={}, versions={})
    report.save(results, tmp_path / "chaos.md")
    page = (tmp_path / "chaos.md").read_text()
    assert (results.rounds, results.lost, results.doubled, results.clean) == (2, 1, 0, False)
    assert f"| {Fault.KILL_WORKER} | 2 |" in page
    assert "| of these completed | 1,234 |" in page
    assert "line 7 has no outcome" in page
    assert msgspec.json.decode((tmp_path / "chaos.json").read_bytes(), type=report.ChaosResults) == results
