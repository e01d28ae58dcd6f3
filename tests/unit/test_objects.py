"""The object store: an object is there whole or not at all, and what broken uploads leave can be found."""

import asyncio
import os
import resource
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from batchline.files.objects import ObjectNotFound, Objects, ObjectStoreUnavailable
from tests.support.objects import KEY, LARGE, MIB, Source, blocks, content, keys


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("sizes", [[], [0], [1], [3, MIB, 5], [MIB] * LARGE])
async def test_what_is_written_is_read(tmp_path: Path, sizes: list[int]) -> None:
    objects = Objects.at(tmp_path / "new" / "folder")
    parts = [os.urandom(size) for size in sizes]
    assert await objects.write(KEY, blocks(*parts)) == sum(sizes)
    assert await content(objects) == b"".join(parts)
    assert await objects.size(KEY) == sum(sizes)
    assert await objects.exists(KEY)
    assert await keys(objects) == [KEY]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 4, b"0123"),
        (3, 7, b"3456"),
        (7, None, b"789"),
        (7, 99, b"789"),
        (9, 10, b"9"),
        (4, 4, b""),
        (10, None, b""),
        (99, 120, b""),
    ],
)
async def test_a_part_is_read_without_the_rest(
    tmp_path: Path, start: int, end: int | None, expected: bytes
) -> None:
    objects = Objects.at(tmp_path)
    await objects.write(KEY, blocks(b"0123456789"))
    assert b"".join([block async for block in objects.read(KEY, start, end)]) == expected


async def test_a_file_url_is_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    await Objects.at(folder.as_uri()).write(KEY, blocks(b"x"))
    assert files(folder) == [KEY]


async def test_an_object_is_seen_only_when_it_is_whole(tmp_path: Path) -> None:
    objects, source = Objects.at(tmp_path), Source()
    upload = asyncio.create_task(objects.write(KEY, source))
    await source.half_way.wait()
    assert files(tmp_path) == [f"{KEY}#1"], "the upload should be under way"
    assert not await objects.exists(KEY)
    source.go_on.set()
    assert await upload == LARGE * MIB + 3
    assert files(tmp_path) == [KEY]


async def test_an_upload_whose_source_fails_leaves_nothing(tmp_path: Path) -> None:
    objects, source = Objects.at(tmp_path), Source()
    source.error = ZeroDivisionError("of the source")
    source.go_on.set()
    with pytest.raises(ZeroDivisionError, match="of the source"):
        await objects.write(KEY, source)
    assert files(tmp_path) == []


async def test_an_upload_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    objects, source = Objects.at(tmp_path), Source()
    upload = asyncio.create_task(objects.write(KEY, source))
    await source.half_way.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert files(tmp_path) == []


async def test_an_upload_that_is_cancelled_while_it_is_completed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = Objects.at(tmp_path)
    upload = asyncio.create_task(objects.write(KEY, blocks(b"x")))
    loop = asyncio.get_running_loop()
    real = os.fsync

    def cancel_then_sync(descriptor: int) -> None:
        loop.call_soon_threadsafe(upload.cancel)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", cancel_then_sync)
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert files(tmp_path) == []


async def test_an_upload_that_fills_the_disk_is_an_error_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9 * MIB, limits[1]))
    try:
        with pytest.raises(ObjectStoreUnavailable, match=r"^outputs/batch/file\.jsonl: .*File too large.*$"):
            await Objects.at(tmp_path).write(KEY, blocks(*[b"x" * MIB] * LARGE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path) == []


@pytest.mark.parametrize("size", [1, LARGE * MIB])
async def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path, size: int) -> None:
    objects = Objects.at(tmp_path)
    (tmp_path / "outputs").touch()
    with pytest.raises(ObjectStoreUnavailable, match="Not a directory"):
        await objects.write(KEY, blocks(b"x" * size))
    with pytest.raises(ObjectStoreUnavailable, match="Not a directory"):
        Objects.at(tmp_path / "outputs" / "folder")


async def test_a_missing_object_has_its_own_error(tmp_path: Path) -> None:
    objects = Objects.at(tmp_path)
    assert not await objects.exists(KEY)
    assert await keys(objects) == []
    with pytest.raises(ObjectNotFound):
        await objects.size(KEY)
    with pytest.raises(ObjectNotFound):
        await content(objects)
    await objects.delete([KEY])


async def test_a_written_object_and_the_folders_above_it_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def remember(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", remember)
    await Objects.at(tmp_path).write(KEY, blocks(b"x"))
    expected = [tmp_path / KEY, tmp_path / "outputs/batch", tmp_path / "outputs", tmp_path]
    assert synced == [path.stat().st_ino for path in expected]


async def test_what_a_killed_upload_left_is_found_and_removed_with_its_folder(tmp_path: Path) -> None:
    objects = Objects.at(tmp_path)
    await objects.write("outputs/other/file.jsonl", blocks(b"x"))
    staged = tmp_path / f"{KEY}#1"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"part")
    assert await keys(objects) == [f"{KEY}#1", "outputs/other/file.jsonl"]
    await objects.delete([f"{KEY}#1"])
    assert await keys(objects) == ["outputs/other/file.jsonl"]
    assert not staged.parent.exists()


async def test_a_store_that_is_not_a_folder_does_the_same() -> None:
    objects = Objects(MemoryStore())
    await objects.write(KEY, blocks(b"abc"))
    await objects.write("inputs/other", blocks(b""))
    assert await content(objects) == b"abc"
    assert await keys(objects) == [KEY]
    await objects.delete([KEY, "outputs/not/there"])
    assert await keys(objects) == []
    assert not await objects.exists(KEY)
