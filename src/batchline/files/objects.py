"""The object store: a folder, or a bucket by its URL, through obstore.

An object exists completely or not at all, and a key is written only once. obstore is called in threads, not
through its async functions: those complete on other threads, and a process that ends right after such a call
aborts half of the time (obstore 0.12.1, CPython 3.11: 33 of 60 runs that ended after `head_async`, none of 60
after `head`).
"""

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec
import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from batchline.host.disk import has_no_room, says_full
from batchline.host.private import FolderNotPrivate, objects_folder

if TYPE_CHECKING:
    from obstore import GetOptions, WritableFile
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

# Parts of an upload: at most four are in memory, and S3's limit of ten thousand parts allows 80 GB.
_PART = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4
# A folder needs no large parts, and a server writes many files concurrently.
_FOLDER_PART = 1024 * 1024
_READ = 1024 * 1024
_PAGE = 1000

# Prefixes of keys: files of batches, files of clients, and parts of incomplete uploads.
OUTPUTS = "outputs/"
INPUTS = "inputs/"
PARTS = "parts/"

_FAR = 2**63 - 1
# Short failures are retried here. Longer ones are the caller's to retry.
RETRIES: "RetryConfig" = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}

P = ParamSpec("P")
T = TypeVar("T")


class ObjectStoreUnavailable(Exception):
    """A call to the object store failed: full, not permitted, or unreachable. Trying again may help."""


class ObjectStoreFull(ObjectStoreUnavailable):
    """The disk of the object store is full."""


class ObjectNotFound(ObjectStoreUnavailable):
    """The object does not exist."""


class Stored(msgspec.Struct, frozen=True):
    """An object, or in a folder the remains of a broken upload."""

    key: str
    bytes: int
    modified: datetime


class Objects:
    """Objects under one folder or URL."""

    def __init__(self, store: "ObjectStore", location: str = "") -> None:
        self._store = store
        # The argument of `at`, so that another process can open the same store.
        self.location = location
        self._folder = store.prefix if isinstance(store, LocalStore) else None

    @classmethod
    def at(cls, location: str | Path) -> "Objects":
        """`location` is a folder, which is created if necessary, or a URL: s3://bucket/prefix, gs://…,
        az://…"""
        with _translated(str(location)):
            parts = urlsplit(str(location))
            if parts.scheme == "file":
                return cls(_folder_store(Path(unquote(parts.path))), str(location))
            if "://" in str(location):
                return cls(
                    from_url(str(location), client_options=client_options(), retry_config=RETRIES),
                    str(location),
                )
            folder = Path(location).absolute()
            return cls(_folder_store(folder), str(folder))

    async def write(self, key: str, blocks: AsyncIterable[bytes]) -> int:
        """Store `blocks` as one object and return its size. If that fails, no object is visible.

        When it returns, the object survives a crash of the machine.
        """
        writer = await self._call(
            key,
            obstore.open_writer,
            self._store,
            key,
            buffer_size=_FOLDER_PART if self._folder else _PART,
            max_concurrency=_PARTS_AT_ONCE,
        )
        size = 0
        written = asyncio.create_task(asyncio.sleep(0, result=0))
        try:
            # One block is written while the next one is produced.
            async for block in blocks:
                size += await written
                written = asyncio.create_task(self._call(key, writer.write, block))
            size += await written
        except BaseException as error:
            await asyncio.gather(written, return_exceptions=True)
            # If even this fails, the sweep deletes the remains of the upload.
            with suppress(ObjectStoreUnavailable):
                await self._call(key, _abort, writer, error)
            raise
        await self._complete(key, writer)
        return size

    async def read(
        self, key: str, start: int = 0, end: int | None = None, *, min_bytes: int = _READ
    ) -> AsyncIterator[bytes]:
        """The content from `start` to `end`, in blocks of `min_bytes` bytes except the last.

        A range beyond the end of the object is cut.
        """
        if start or end is not None:
            end = min(await self.size(key), _FAR if end is None else end)
            if start >= end:
                return
        options: GetOptions = {"range": (start, end)} if end is not None else {}
        found = await self._call(key, obstore.get, self._store, key, options=options)
        stream = found.stream(min_chunk_size=min_bytes)
        while (block := await self._call(key, next, stream, None)) is not None:
            yield bytes(block)

    async def size(self, key: str) -> int:
        found = await self._call(key, obstore.head, self._store, key)
        return found["size"]

    def has_no_room(self) -> bool:
        """Whether the disk of a folder is full. Buckets are never full."""
        return self._folder is not None and has_no_room(self._folder)

    async def exists(self, key: str) -> bool:
        try:
            await self.size(key)
        except ObjectNotFound:
            return False
        return True

    async def pages(self, prefix: str) -> AsyncIterator[list[Stored]]:
        """All objects under `prefix` (a folder: `outputs/`), page by page.

        In a folder, unfinished uploads are files beside their target, such as `key#1`. obstore's listing
        hides them, so the folder is walked to find the remains of broken uploads. In a bucket they are
        invisible; a lifecycle rule for incomplete multipart uploads deletes them.
        """
        found = _pages(_files(self._folder, prefix)) if self._folder else _listing(self._store, prefix)
        while page := await self._call(prefix, next, found, None):
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects and broken uploads. Missing ones are ignored."""
        if self._folder:
            await self._call(self._folder, _unlink, self._folder, keys)
        elif keys:
            with suppress(ObjectNotFound):
                await self._call(keys[0], obstore.delete, self._store, keys)

    async def _complete(self, key: str, writer: "WritableFile") -> None:
        try:
            await self._call(key, writer.close)
            # obstore does not sync, but an object must be on disk before the database records it.
            if self._folder:
                await self._call(key, _flush, self._folder, key)
        except BaseException:
            # The object may exist, for example after a cancellation during `close`.
            with suppress(ObjectStoreUnavailable):
                await self.delete([key])
            raise

    async def _call(self, what: object, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with _translated(str(what), self.location):
            return await _in_thread(act, *args, **kwargs)


async def _in_thread(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call to its end, even if cancelled, so that later calls do not overtake it."""
    call = asyncio.ensure_future(asyncio.to_thread(act, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        # Also if cancelled repeatedly, as by a second Ctrl-C.
        while not call.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([call])
        call.exception()
        raise


def _folder_store(folder: Path) -> LocalStore:
    try:
        objects_folder(folder)
    except FolderNotPrivate as error:
        raise ObjectStoreUnavailable(str(error)) from error
    return LocalStore(folder)


@contextmanager
def _translated(what: str, location: str = "") -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFound(f"no object {what}") from error
    except (BaseError, OSError) as error:
        if says_full(str(error)):
            full = f"disk full: no space left for {what} in {location or what}"
            raise ObjectStoreFull(full) from error
        # obstore appends pages of debug output after a blank line.
        raise ObjectStoreUnavailable(f"{what}: {str(error).partition(chr(10))[0]}") from error


def client_options() -> "ClientConfig":
    """obstore's default limit is 30 s for a whole request, which a slow reader of a large object exceeds.
    Here, only the time without data is limited.

    With options, obstore ignores AWS_ALLOW_HTTP in the environment, so it is read here.
    """
    allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
    return {
        "connect_timeout": "10s",
        "read_timeout": "60s",
        "timeout": "24h",
        "allow_http": allow_http,
    }


def _abort(writer: "WritableFile", error: BaseException) -> None:
    """Leave the writer's context with an error, which makes obstore drop the upload."""
    kind: type[BaseException] = type(error)
    trace: TracebackType | None = error.__traceback__
    writer.__exit__(kind, error, trace)


def _flush(folder: Path, key: str) -> None:
    """fsync the file and the folders above it, up to and including the store's folder.

    obstore creates both with default permissions; here they become private.
    """
    path = folder / key
    path.chmod(0o600)
    _fsync(path)
    for parent in path.parents:
        if parent != folder:
            parent.chmod(0o700)
        _fsync(parent)
        if parent == folder:
            return


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink(folder: Path, keys: Sequence[str]) -> None:
    for key in keys:
        path = folder / key
        path.unlink(missing_ok=True)
        for parent in path.parents:
            if parent == folder:
                break
            try:
                parent.rmdir()
            except OSError:
                break  # Not empty, or already deleted.


def _listing(store: "ObjectStore", prefix: str) -> Iterator[list[Stored]]:
    for page in obstore.list(store, prefix, chunk_size=_PAGE):
        yield [Stored(found["path"], found["size"], found["last_modified"]) for found in page]


def _files(folder: Path, prefix: str) -> Iterator[Stored]:
    for parent, _, names in os.walk(folder / prefix):
        for name in names:
            path = Path(parent, name)
            # The file may have been deleted meanwhile.
            with suppress(FileNotFoundError):
                state = path.stat()
                modified = datetime.fromtimestamp(state.st_mtime, UTC)
                yield Stored(path.relative_to(folder).as_posix(), state.st_size, modified)


def _pages(stored: Iterator[Stored]) -> Iterator[list[Stored]]:
    while page := list(islice(stored, _PAGE)):
        yield page
