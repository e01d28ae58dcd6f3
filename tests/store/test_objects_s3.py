"""The object store behaves alike in a folder and in a bucket on a real S3 server."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from batchline.batches.finalize import finalize_one, sweep_objects
from batchline.files.objects import ObjectNotFound, Objects, ObjectStoreUnavailable
from batchline.model.ids import new_id
from batchline.store.session import Session
from tests.support.buckets import BUCKET, S3, s3_server
from tests.support.builders import a_worker
from tests.support.finalizing import AT_ONCE, a_finished_batch, a_large_batch, answers, ended, recorded
from tests.support.objects import KEY, LARGE, MIB, Source, blocks, content, keys
from tests.support.webhook_receiver import receiving

pytestmark = pytest.mark.skipif(
    not (Path(sys.executable).parent / "weed").exists(), reason="the S3 server has no wheel for this machine"
)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a place of one's own, with the means to write there in the environment."""
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{new_id().hex}/some prefix"


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return Objects.at(tmp_path if request.param == "folder" else request.getfixturevalue("bucket"))


@pytest.mark.parametrize("sizes", [[], [0], [1], [3, MIB, 5], [MIB] * LARGE], ids=str)
async def test_what_is_written_is_read(objects: Objects, sizes: list[int]) -> None:
    parts = [os.urandom(size) for size in sizes]
    assert await objects.write(KEY, blocks(*parts)) == sum(sizes)
    assert await content(objects) == b"".join(parts)
    assert await objects.size(KEY) == sum(sizes)
    assert await objects.exists(KEY)
    assert await keys(objects) == [KEY]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 4, b"0123"),
        (3, 7, b"3456"),
        (7, None, b"789"),
        (7, 99, b"789"),
        (4, 4, b""),
        (10, None, b""),
        (99, 120, b""),
    ],
)
async def test_a_part_is_read_without_the_rest(
    objects: Objects, start: int, end: int | None, expected: bytes
) -> None:
    await objects.write(KEY, blocks(b"0123456789"))
    assert b"".join([block async for block in objects.read(KEY, start, end)]) == expected


async def test_a_part_of_a_large_object_is_read_without_the_rest(objects: Objects) -> None:
    parts = [os.urandom(MIB) for _ in range(LARGE)]
    await objects.write(KEY, blocks(*parts))
    start, end = 7 * MIB + 13, 17 * MIB - 11
    found = [block async for block in objects.read(KEY, start, end)]
    assert len(found) > 1
    assert b"".join(found) == b"".join(parts)[start:end]


async def test_a_missing_object_has_its_own_error(objects: Objects) -> None:
    assert not await objects.exists(KEY)
    assert await keys(objects) == []
    for act in (objects.size(KEY), content(objects), _first(objects.read(KEY, 3))):
        with pytest.raises(ObjectNotFound):
            await act
    await objects.delete([KEY])


async def test_an_object_is_seen_only_when_it_is_whole(objects: Objects) -> None:
    source = Source()
    upload = asyncio.create_task(objects.write(KEY, source))
    await _half_way(source, upload)
    assert not await objects.exists(KEY)
    source.go_on.set()
    assert await upload == LARGE * MIB + 3
    assert await objects.exists(KEY)


@pytest.mark.parametrize("how", ["the source fails", "cancelled"])
async def test_an_interrupted_upload_leaves_nothing(objects: Objects, how: str) -> None:
    source = Source()
    upload = asyncio.create_task(objects.write(KEY, source))
    await _half_way(source, upload)
    if how == "cancelled":
        upload.cancel()
    else:
        source.error = ZeroDivisionError("of the source")
        source.go_on.set()
    with pytest.raises((ZeroDivisionError, asyncio.CancelledError)):
        await upload
    assert not await objects.exists(KEY)
    assert await keys(objects) == []


async def test_a_broken_upload_leaves_no_parts_on_the_server(s3: S3, bucket: str) -> None:
    objects, source = Objects.at(bucket), Source()
    upload = asyncio.create_task(objects.write(KEY, source))
    await _half_way(source, upload)
    assert len(s3.unfinished_uploads()) == 1, "the upload should be under way"
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert s3.unfinished_uploads() == []


async def test_many_objects_come_page_by_page_and_go_at_once(objects: Objects) -> None:
    written = [f"outputs/{n:04}/file" for n in range(1_005)]
    await objects.write("inputs/other", blocks(b"x"))
    for first in range(0, len(written), 67):
        await asyncio.gather(*(objects.write(key, blocks(b"x")) for key in written[first : first + 67]))
    pages = [page async for page in objects.pages("outputs/")]
    assert len(pages) > 1
    assert sorted(found.key for page in pages for found in page) == written
    assert {found.bytes for page in pages for found in page} == {1}
    await objects.delete([*written, "outputs/not/there"])
    assert await keys(objects) == []
    assert await keys(objects, "inputs/") == ["inputs/other"]


async def test_a_batch_is_finalized_into_it(db: Session, objects: Objects) -> None:
    batch = await a_finished_batch(db, {"a": 9, "b": 6}, fail=lambda item: item.line_no % 5 == 0)
    done = await ended(finalize_one(db, objects, a_worker()))
    assert done.id == batch.id
    kept = [n for n in range(1, 16) if n % 5]
    assert await recorded(db, objects, done.output_file_id) == answers(*kept)
    assert len(await recorded(db, objects, done.error_file_id)) == 3
    await a_large_batch(db)
    done = await ended(finalize_one(db, objects, a_worker()))
    assert len(await recorded(db, objects, done.output_file_id)) == 200
    await objects.write("outputs/nobody/knows.jsonl", blocks(b"x"))
    assert await sweep_objects(db, objects, AT_ONCE) == 1
    assert len(await keys(objects)) == 3


@pytest.mark.parametrize("size", [1, LARGE * MIB])
@pytest.mark.parametrize(("key", "secret"), [("reader", None), ("writer", "wrong"), ("nobody", None)])
async def test_a_bucket_that_refuses_is_an_error_for_a_person(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, key: str, secret: str | None, size: int
) -> None:
    environment = s3.environment(key) if secret is None else s3.environment(key, secret)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ObjectStoreUnavailable, match=r"^outputs/batch/file\.jsonl: .*") as refused:
        await Objects.at(bucket).write(KEY, blocks(b"x" * size))
    assert "\n" not in str(refused.value)
    assert not isinstance(refused.value, ObjectNotFound)


async def test_a_missing_bucket_is_an_error(s3: S3, bucket: str) -> None:
    with pytest.raises(ObjectStoreUnavailable):
        await Objects.at("s3://no-such-bucket/prefix").write(KEY, blocks(b"x"))


@pytest.mark.parametrize("status", [500, 503, 507])
async def test_a_store_that_is_full_or_ill_is_an_error_and_not_a_wait(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with receiving(lambda _: (status, {})) as ill:
        monkeypatch.setenv("AWS_ENDPOINT_URL", ill.url.removesuffix("/hook"))
        with pytest.raises(ObjectStoreUnavailable):
            await Objects.at(bucket).write(KEY, blocks(b"x"))


async def test_an_unreachable_store_is_an_error(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ObjectStoreUnavailable):
        await Objects.at(bucket).exists(KEY)


async def _half_way(source: Source, upload: asyncio.Task[int]) -> None:
    reached = asyncio.create_task(source.half_way.wait())
    await asyncio.wait([reached, upload], return_when=asyncio.FIRST_COMPLETED)
    assert not upload.done(), "the upload should be under way"


async def _first(found: AsyncIterator[bytes]) -> bytes:
    return await anext(found)
