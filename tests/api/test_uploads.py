"""/v1/uploads: files in parts, driven by the official client."""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

import openai
import pytest
from openai.types import Upload
from openai.types.uploads import UploadPart

from batchline.batches import maintenance
from batchline.batches.finalize import sweep_objects
from batchline.config.settings import ServerSettings
from batchline.store.session import Session
from tests.support.builders import on, sql
from tests.support.serving import NOWHERE, Server, serving
from tests.support.uploading import error_of, requests, stored

CHAT: Final = "/v1/chat/completions"
Purpose = Literal["batch", "user_data"]
SMALL = ServerSettings(
    upstreams=(NOWHERE,),
    sessions=8,
    streams=4,
    max_file_bytes=1_000_000,
    max_upload_bytes=5_000_000,
    max_part_bytes=300_000,
)


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    with serving(database_url, tmp_path, SMALL) as running:
        yield running


def begin(client: openai.OpenAI, size: int, purpose: Purpose = "user_data", name: str = "big.bin") -> Upload:
    return client.uploads.create(
        bytes=size, filename=name, mime_type="application/octet-stream", purpose=purpose
    )


def send(client: openai.OpenAI, upload: Upload, content: bytes) -> UploadPart:
    return client.uploads.parts.create(upload.id, data=content)


def test_a_file_in_parts_becomes_one_file(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    content = requests(3000)

    upload = client.uploads.upload_file_chunked(
        file=content,
        filename="big.jsonl",
        bytes=len(content),
        mime_type="application/jsonl",
        purpose="batch",
        part_size=60_000,
        md5=hashlib.md5(content).hexdigest(),
    )

    Upload.model_validate(upload.model_dump(), strict=True)
    assert (upload.status, upload.bytes, upload.filename) == ("completed", len(content), "big.jsonl")
    assert upload.file is not None
    assert (upload.file.bytes, upload.file.status, upload.file.purpose) == (
        len(content),
        "processed",
        "batch",
    )
    assert client.files.retrieve(upload.file.id) == upload.file
    assert client.files.content(upload.file.id).content == content
    assert len(stored(tmp_path)) == 1, "the parts are gone"
    batch = client.batches.create(input_file_id=upload.file.id, endpoint=CHAT, completion_window="24h")
    assert batch.request_counts is not None
    assert batch.request_counts.total == 3000


def test_parts_may_be_sent_concurrently_and_are_joined_in_the_given_order(server: Server) -> None:
    client = server.client("acme")
    pieces = [bytes([65 + n]) * 10_000 for n in range(16)]
    upload = begin(client, 160_000)
    assert (upload.status, upload.expires_at - upload.created_at) == ("pending", 3600)

    with ThreadPoolExecutor(16) as pool:
        parts = list(pool.map(lambda piece: send(client, upload, piece), pieces))

    for part in parts:
        UploadPart.model_validate(part.model_dump(), strict=True)
        assert part.upload_id == upload.id
    done = client.uploads.complete(upload.id, part_ids=[part.id for part in reversed(parts)])
    assert done.file is not None
    assert client.files.content(done.file.id).content == b"".join(reversed(pieces))


def test_completing_again_or_concurrently_returns_the_same_file(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    content = requests(50)
    upload = begin(client, len(content), "batch")
    part = send(client, upload, content)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: client.uploads.complete(upload.id, part_ids=[part.id]), range(8)))

    assert len({one.file.id for one in done if one.file}) == 1
    assert all(one.status == "completed" for one in done)
    assert len(client.files.list().data) == 1
    assert len(stored(tmp_path)) == 1


def test_wrong_part_ids_and_checksums_are_refused(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    upload = begin(client, 6)
    one, two = send(client, upload, b"abc"), send(client, upload, b"def")
    stranger = send(client, begin(client, 3), b"abc")
    cases: list[tuple[list[str], str | None, str]] = [
        ([one.id], None, "part_ids"),
        ([], None, "part_ids"),
        ([one.id, one.id], None, "part_ids"),
        ([one.id, stranger.id], None, "part_ids"),
        ([one.id, "part_nonsense"], None, "part_ids"),
        ([one.id, two.id], "0" * 32, "md5"),
        ([two.id, one.id], hashlib.md5(b"abcdef").hexdigest(), "md5"),
    ]
    for part_ids, md5, param in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            client.uploads.complete(upload.id, part_ids=part_ids, **({"md5": md5} if md5 else {}))  # type: ignore[arg-type]
        assert error_of(caught)["param"] == param, part_ids
    assert len([key for key in stored(tmp_path) if key.startswith("inputs/")]) == 0

    done = client.uploads.complete(
        upload.id, part_ids=[one.id, two.id], md5=hashlib.md5(b"abcdef").hexdigest().upper()
    )
    assert done.status == "completed"


def test_a_cancelled_upload_takes_nothing_more_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    upload = begin(client, 6)
    part = send(client, upload, b"abcdef")
    assert len(stored(tmp_path)) == 1

    cancelled = client.uploads.cancel(upload.id)

    assert cancelled.status == "cancelled"
    assert stored(tmp_path) == []
    assert client.uploads.cancel(upload.id).status == "cancelled"
    for act in (
        lambda: send(client, upload, b"abcdef"),
        lambda: client.uploads.complete(upload.id, part_ids=[part.id]),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            act()
        assert error_of(caught)["code"] == "upload_cancelled"
    assert stored(tmp_path) == []


def test_a_completed_upload_cannot_be_cancelled(server: Server) -> None:
    client = server.client("acme")
    upload = begin(client, 3)
    client.uploads.complete(upload.id, part_ids=[send(client, upload, b"abc").id])

    with pytest.raises(openai.BadRequestError) as caught:
        client.uploads.cancel(upload.id)
    assert error_of(caught)["code"] == "upload_completed"


def test_an_upload_whose_time_is_over_is_expired_and_its_parts_go(
    server: Server, database_url: str, tmp_path: Path
) -> None:
    client = server.client("acme")
    upload = begin(client, 6)
    part = send(client, upload, b"abcdef")

    async def age(hours: int, db: Session) -> None:
        await sql(
            db,
            "UPDATE batchline.uploads SET expires_at = now() - make_interval(hours => %(hours)s);",
            hours=hours,
        )
        await sql(db, "UPDATE batchline.maintenance_tasks SET due_at = now()")
        await maintenance.run_due(db, server.objects)

    on(database_url, lambda db: age(0, db))
    for act in (
        lambda: send(client, upload, b"abcdef"),
        lambda: client.uploads.complete(upload.id, part_ids=[part.id]),
        lambda: client.uploads.cancel(upload.id),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            act()
        assert error_of(caught)["code"] == "upload_expired"
    assert len(stored(tmp_path)) == 1, "one that is being completed may still read its parts"

    on(database_url, lambda db: age(2, db))
    assert stored(tmp_path) == []
    assert on(database_url, lambda db: sql(db, "SELECT * FROM batchline.upload_parts")) == []

    on(database_url, lambda db: age(24 * 31, db))
    assert on(database_url, lambda db: sql(db, "SELECT * FROM batchline.uploads")) == []


def test_the_sweep_leaves_parts_alone_until_their_upload_is_over(
    server: Server, database_url: str, tmp_path: Path
) -> None:
    client = server.client("acme")
    upload = begin(client, 6)
    part = send(client, upload, b"abcdef")
    left = tmp_path / "objects" / "parts" / "of-somebody-who-left"
    left.write_bytes(b"x")

    removed = on(database_url, lambda db: sweep_objects(db, server.objects, timedelta(0)))

    assert removed == 1
    assert client.uploads.complete(upload.id, part_ids=[part.id]).status == "completed"


def test_uploads_and_parts_have_limits(server: Server, tmp_path: Path) -> None:
    client = server.client("acme")
    for size, purpose in ((5_000_001, "user_data"), (1_000_001, "batch")):
        with pytest.raises(openai.APIStatusError) as caught:
            begin(client, size, purpose)  # type: ignore[arg-type]
        assert (caught.value.status_code, error_of(caught)["param"]) == (413, "bytes")
    upload = begin(client, 600_000)
    with pytest.raises(openai.APIStatusError) as caught:
        send(client, upload, b"x" * 300_001)
    assert (caught.value.status_code, error_of(caught)["param"]) == (413, "data")
    with pytest.raises(openai.BadRequestError):
        send(client, upload, b"")
    assert stored(tmp_path) == []
    # Sent again and again, parts fill no disk.
    for _ in range(5):
        send(client, upload, b"x" * 300_000)
    with pytest.raises(openai.BadRequestError) as too_many:
        send(client, upload, b"x" * 300_000)
    assert error_of(too_many)["param"] == "data"
    assert len(stored(tmp_path)) == 5


def test_an_invalid_parameter_is_named_in_the_error(server: Server) -> None:
    good: dict[str, Any] = {"bytes": 3, "filename": "x", "mime_type": "text/plain", "purpose": "batch"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"bytes": 0}, "bytes"),
        ({"bytes": "3"}, "bytes"),
        ({"bytes": -1}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"purpose": "mischief"}, "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
        ({"more": 1}, "more"),
    ]
    with server.http(server.key("acme")) as http:
        for change, param in cases:
            answer = http.post("/v1/uploads", json={**good, **change})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), change
        answer = http.post("/v1/uploads", content=json.dumps({**good, "mime_type": "\x00"}))
        assert answer.status_code == 400


def test_the_file_expires_as_the_upload_requested(server: Server) -> None:
    client = server.client("acme")
    upload = client.uploads.create(
        bytes=3,
        filename="x",
        mime_type="text/plain",
        purpose="user_data",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    done = client.uploads.complete(upload.id, part_ids=[send(client, upload, b"abc").id])
    assert done.file is not None
    assert done.file.expires_at == done.file.created_at + 7200


def test_another_tenants_upload_is_not_found(server: Server) -> None:
    client, stranger = server.client("acme"), server.client("other")
    upload = begin(client, 3)
    part = send(client, upload, b"abc")
    for act in (
        lambda: send(stranger, upload, b"abc"),
        lambda: stranger.uploads.complete(upload.id, part_ids=[part.id]),
        lambda: stranger.uploads.cancel(upload.id),
    ):
        with pytest.raises(openai.NotFoundError):
            act()
    # Nor can its parts be used in an upload of one's own.
    own = begin(stranger, 3)
    with pytest.raises(openai.BadRequestError):
        stranger.uploads.complete(own.id, part_ids=[part.id])
    assert client.uploads.complete(upload.id, part_ids=[part.id]).status == "completed"
