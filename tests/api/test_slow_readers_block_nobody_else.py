"""A client that does not read its download holds a place of its tenant's and little memory, nothing else."""

import json
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from batchline.api import limits
from batchline.api.downloads import Downloads
from batchline.api.errors import ApiError
from batchline.config.settings import ServerSettings
from batchline.governance import keys
from batchline.model import DEFAULT_TENANT
from batchline.store.pool import Sessions
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.server_process import served
from tests.support.serving import NOWHERE, Server, serving
from tests.support.slow_readers import (
    LINES,
    a_running_output,
    begun_reading,
    is_let_go,
    requested_for,
    rest_of,
    stalled,
    streaming,
)
from tests.support.waiting import wait_for

SETTINGS = ServerSettings(upstreams=(NOWHERE,), sessions=4, streams=2)
END = b"\r\n0\r\n\r\n"


def lines_of(server: Server, key: str, file_id: str) -> list[int]:
    with server.http(key) as http:
        answer = http.get(f"/v1/files/{file_id}/content")
        assert answer.status_code == 200, answer.text
        return [json.loads(line)["answer"] for line in answer.text.splitlines()]


def test_stalled_downloads_of_a_running_batch_block_no_other_reader(
    database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, SETTINGS) as server:
        slow = on(database_url, lambda db: a_running_output(db, "slow"))
        other = on(database_url, lambda db: a_running_output(db, "other"))
        # Many times the connections that there are for downloads.
        with stalled(server.url, server.key("slow"), slow, 20):
            wait_for("nothing to be held in the database", lambda: not streaming(database_url))
            assert lines_of(server, server.key("other"), other) == list(range(1, LINES + 1))
            assert lines_of(server, server.key("slow"), slow) == list(range(1, LINES + 1))


def test_a_stalled_download_of_an_input_file_holds_nothing_in_the_database(
    database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, SETTINGS) as server:

        async def taken_in_by_a_command(db: Session) -> str:
            await a_running_output(db, lines=LINES, width=0)
            await sql(db, "UPDATE batchline.lines SET body = body || repeat(' ', 20000)")
            ((file_id,),) = await sql(db, "SELECT id FROM batchline.files")
            return f"file-{file_id.hex}"

        file_id = on(database_url, taken_in_by_a_command)
        key = server.key()
        with stalled(server.url, key, file_id, 6):
            wait_for("nothing to be held in the database", lambda: not streaming(database_url))
            with server.http(key) as http:
                text = http.get(f"/v1/files/{file_id}/content").text
            assert [json.loads(line)["custom_id"] for line in text.splitlines()] == [
                f"line-{n}" for n in range(1, LINES + 2)
            ]


def test_lines_that_vanish_while_they_are_read_break_the_answer_off(
    database_url: str, tmp_path: Path
) -> None:
    with serving(database_url, tmp_path, SETTINGS) as server:
        output = on(database_url, a_running_output)
        with begun_reading(server.url, server.key(), output) as reader:
            on(database_url, lambda db: sql(db, "DELETE FROM batchline.results WHERE line_no > 1990"))
            assert not rest_of(reader).endswith(END)


def test_a_reader_that_is_too_slow_is_disconnected(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PATIENCE", 0.0)
    monkeypatch.setattr(limits, "MIN_RATE", 10**12)
    with serving(database_url, tmp_path, SETTINGS) as server, server.http(server.key()) as http:
        output = on(database_url, a_running_output)
        with pytest.raises(httpx2.RemoteProtocolError):
            http.get(f"/v1/files/{output}/content")


def test_a_large_answer_that_is_not_read_is_dropped_too(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of files is no download, but may be as large."""
    monkeypatch.setattr(limits, "TAKEN_WITHIN", 0.5)

    async def ten_thousand_files(db: Session) -> None:
        query = """
            INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
            SELECT gen_random_uuid(), %(tenant)s, 'user_data', repeat('ä', 600), 0, 0
            FROM generate_series(1, 10000)
        """
        await sql(db, query, tenant=DEFAULT_TENANT)

    on(database_url, ten_thousand_files)
    with serving(database_url, tmp_path, SETTINGS) as server:
        key = server.key()
        with requested_for(server.url, key, "/v1/files") as reader:
            assert reader.recv(15) == b"HTTP/1.1 200 OK"
            wait_for("the server to let go of the connection", lambda: is_let_go(reader))


# Places


async def test_downloads_are_limited_per_tenant_and_in_total(database_url: str) -> None:
    downloads = Downloads(Sessions(database_url), maximum=3, max_per_tenant=2, patience=0.1)
    async with downloads.slot("slow"), downloads.slot("slow"):
        with pytest.raises(ApiError) as refused:
            async with downloads.slot("slow"):
                pass
        assert (refused.value.status, refused.value.code) == (503, "too_many_downloads")
        assert int(refused.value.headers["retry-after"]) >= 1
        async with downloads.slot("other"):
            with pytest.raises(ApiError, match="Too many downloads are"):
                async with downloads.slot("third"):
                    pass
        async with downloads.slot("third"):
            pass
    async with downloads.slot("slow"), downloads.slot("slow"), downloads.slot("other"):
        pass


# The whole attack


TENANTS, EACH = 7, 32
# Much less than the lines of five megabytes alone: one for every third reader.
ALLOWED = 200.0


def peak_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.attack
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_two_hundred_stalled_downloads_use_little_memory_and_delay_no_other(
    database_url: str, tmp_path: Path
) -> None:
    """Of files, of running outputs, and of running outputs with lines of five megabytes, in turns."""

    async def outputs(db: Session) -> list[tuple[str, str, str]]:
        found = []
        for tenant in (f"tenant-{n}" for n in range(TENANTS + 1)):
            _, secret = await keys.create(db, f"key of {tenant}", tenant)
            small = await a_running_output(db, tenant)
            large = await a_running_output(db, tenant, lines=4, width=5_000_000)
            found.append((secret, small, large))
        return found

    with served(database_url, tmp_path, "--no-worker") as server:
        pid = server.process.pid
        made = on(database_url, outputs)
        stored = [uploaded(server.url, secret, 20_000_000) for secret, _, _ in made]
        quiet_key, quiet_small, quiet_large = made.pop()
        quiet = [stored.pop(), quiet_small, quiet_large]
        sizes = [size_of(server.url, quiet_key, file_id) for file_id in quiet]
        before = peak_megabytes(pid)
        with ExitStack() as stack:
            readers: list[socket.socket] = []
            for (secret, small, large), file_id in zip(made, stored, strict=True):
                for n in range(EACH):
                    chosen = (file_id, small, large)[n % 3]
                    readers.append(stack.enter_context(begun_reading(server.url, secret, chosen)))
            assert len(readers) >= 200
            # One more of a tenant that has used up its share: the last, whose readers are not yet given up.
            refusal = get(server.url, made[-1][0], made[-1][1])
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "too_many_downloads")
            assert int(refusal.headers["retry-after"]) >= 1
            assert [size_of(server.url, quiet_key, file_id) for file_id in quiet] == sizes
            after = peak_megabytes(pid)
        assert after - before < ALLOWED, f"{len(readers)} stalled downloads: {before:.0f} to {after:.0f} MB"


def uploaded(url: str, key: str, size: int) -> str:
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as http:
        form = {"purpose": "user_data"}
        answer = http.post("/v1/files", data=form, files={"file": ("large", b"x" * size)})
        return str(answer.json()["id"])


def get(url: str, key: str, file_id: str) -> httpx2.Response:
    with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as http:
        return http.get(f"/v1/files/{file_id}/content")


def size_of(url: str, key: str, file_id: str) -> int:
    answer = get(url, key, file_id)
    assert answer.status_code == 200, answer.text
    return len(answer.content)
