"""The content of a file, or a range of it, so that an interrupted download can continue."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

from fastapi import Request, Response

from batchline.api.context import ApiContext
from batchline.api.downloads import Downloads
from batchline.api.errors import ApiError
from batchline.api.limits import BLOCK
from batchline.api.streaming import MEDIA_TYPE, Blocks, Streamed, attachment
from batchline.files.objects import Objects
from batchline.model import Batch, File, ids
from batchline.store import pages

_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")


def stored(request: Request, objects: Objects, downloads: Downloads, file: File) -> Response:
    """The object of a file. It never changes, so the file's id is its ETag."""
    assert file.object_key is not None
    etag = f'"{file.id.hex}"'
    headers = {**attachment(file.filename), "accept-ranges": "bytes", "etag": etag}
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    start, end = 0, file.bytes
    partial = _requested(request.headers, etag, file.bytes)
    if partial is not None:
        start, end = partial
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    status = 200 if partial is None else 206
    headers["content-length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=MEDIA_TYPE)
    blocks = _exactly(objects.read(file.object_key, start, end, min_bytes=BLOCK), end - start)
    return Streamed(downloads.slot(file.tenant), blocks, status, headers)


def so_far(request: Request, context: ApiContext, downloads: Downloads, batch: Batch) -> Response:
    """The finished lines of a running batch, in input order, with their number in the headers."""
    headers = {
        **attachment(output_name(batch)),
        "x-batchline-incomplete": "true",
        "x-batchline-total": str(batch.total),
        "x-batchline-completed": str(batch.completed),
        "x-batchline-failed": str(batch.failed),
        "cache-control": "no-store",
    }
    if request.method == "HEAD":
        return Response(headers=headers, media_type=MEDIA_TYPE)
    return Streamed(downloads.slot(batch.tenant), _finished(context, downloads, batch), 200, headers)


def rebuilt(request: Request, context: ApiContext, downloads: Downloads, file: File) -> Response:
    """The lines of a file that a command ingested: the same requests, but maybe formatted differently."""
    headers = attachment(file.filename)
    if request.method == "HEAD":
        return Response(headers=headers, media_type=MEDIA_TYPE)
    return Streamed(downloads.slot(file.tenant), _lines(context, downloads, file), 200, headers)


def output_name(batch: Batch) -> str:
    return f"{ids.show(ids.BATCH, batch.id)}_output.jsonl"


async def _finished(context: ApiContext, downloads: Downloads, batch: Batch) -> Blocks:
    async with context.sessions.stream() as session:
        lines = await pages.of_output(session, batch.id)
    async with aclosing(downloads.blocks(lines)) as blocks:
        async for block in blocks:
            yield block
    # The lines in the header existed when the answer began, so missing ones were deleted since.
    _check_whole(lines.count >= batch.completed)


async def _lines(context: ApiContext, downloads: Downloads, file: File) -> Blocks:
    async with context.sessions.stream() as session:
        lines = await pages.of_input(session, file.id)
    async with aclosing(downloads.blocks(lines)) as blocks:
        async for block in blocks:
            yield block
    _check_whole(lines.count == file.line_count)


async def _exactly(blocks: AsyncIterator[bytes], size: int) -> Blocks:
    """Abort if the object is shorter than its file."""
    left = size
    async for block in blocks:
        left -= len(block)
        yield block
    _check_whole(left == 0)


def _check_whole(whole: bool) -> None:
    """Abort an incomplete answer, so that it never looks complete."""
    if not whole:
        raise ApiError(500, "The stored content is incomplete.", code="server_error", type="server_error")


def _requested(headers: Mapping[str, str], etag: str, size: int) -> tuple[int, int] | None:
    """Start and end of the requested range; None: the whole file. Raises 416 if it is beyond the end.

    Several ranges, and ranges of other units, are ignored (RFC 9110, 14.2).
    """
    match = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    condition = headers.get("if-range")
    if match is None or (condition is not None and condition != etag):
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(size - int(suffix), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= end:
        message = f"The range is beyond the end of the file, which has {size} bytes."
        beyond = {"content-range": f"bytes */{size}", "accept-ranges": "bytes"}
        raise ApiError(416, message, code="range_not_satisfiable", param="Range", headers=beyond)
    return start, end


def _matches(condition: str | None, etag: str) -> bool:
    if condition is None:
        return False
    given = [tag.strip().removeprefix("W/") for tag in condition.split(",")]
    return "*" in given or etag in given
