"""The content of a file: whole, or a range of it, so that a download that broke off can go on."""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from batchline import ids
from batchline.api.context import Context
from batchline.api.errors import ApiError
from batchline.engine.objects import Objects
from batchline.model import Batch, File
from batchline.store import outputs

_MEDIA_TYPE = "application/octet-stream"
_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")


class Streamed(StreamingResponse):
    """Lets go of what it streams from as soon as the client has gone."""

    def __init__(self, blocks: AsyncGenerator[bytes], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(blocks, status, headers, _MEDIA_TYPE)
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._blocks):
            await super().__call__(scope, receive, send)


async def stored(request: Request, objects: Objects, file: File) -> Response:
    """The object of a file. It never changes, so the file's id names its content (ETag)."""
    assert file.object_key is not None
    etag = f'"{file.id.hex}"'
    headers = {**_headers(file.filename), "accept-ranges": "bytes", "etag": etag}
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    start, end = 0, file.bytes
    partial = _asked(request.headers, etag, file.bytes)
    if partial is not None:
        start, end = partial
        headers["content-range"] = f"bytes {start}-{end - 1}/{file.bytes}"
    status = 200 if partial is None else 206
    headers["content-length"] = str(end - start)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=_MEDIA_TYPE)
    blocks = _exactly(objects.read(file.object_key, start, end), end - start)
    return Streamed(await _begun(blocks), status, headers)


async def so_far(request: Request, context: Context, batch: Batch) -> Response:
    """What a batch that still runs has finished, in input order, and how much that is."""
    headers = {
        **_headers(output_name(batch)),
        "x-batchline-incomplete": "true",
        "x-batchline-total": str(batch.total),
        "x-batchline-completed": str(batch.completed),
        "x-batchline-failed": str(batch.failed),
        "cache-control": "no-store",
    }
    if request.method == "HEAD":
        return Response(headers=headers, media_type=_MEDIA_TYPE)
    return Streamed(await _begun(_finished(context, batch)), 200, headers)


async def rebuilt(request: Request, context: Context, file: File) -> Response:
    """The lines of a file that a command took in: the same requests, in another spelling maybe."""
    headers = _headers(file.filename)
    if request.method == "HEAD":
        return Response(headers=headers, media_type=_MEDIA_TYPE)
    return Streamed(await _begun(_lines(context, file)), 200, headers)


def output_name(batch: Batch) -> str:
    return f"{ids.show(ids.BATCH, batch.id)}_output.jsonl"


async def _finished(context: Context, batch: Batch) -> AsyncGenerator[bytes]:
    async with context.sessions.stream() as session, outputs.lines(session, batch.id, "output") as lines:
        async for block in lines:
            yield block


async def _lines(context: Context, file: File) -> AsyncGenerator[bytes]:
    async with context.sessions.stream() as session, outputs.input_lines(session, file.id) as lines:
        async for block in lines:
            yield block


async def _exactly(blocks: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes]:
    """An object that is shorter than its file says is an error, not the end."""
    left = size
    async for block in blocks:
        left -= len(block)
        yield block
    if left != 0:
        raise ApiError(500, "The stored content is not whole.", code="server_error", type="server_error")


async def _begun(blocks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same blocks, once the first is here: what cannot be read at all is refused before the answer."""
    first = await anext(blocks, b"")

    async def all_of_them() -> AsyncGenerator[bytes]:
        async with aclosing(blocks):
            yield first
            async for block in blocks:
                yield block

    return all_of_them()


def _headers(filename: str) -> dict[str, str]:
    """A name is given twice (RFC 6266): in ASCII for everybody, and as it is."""
    plain = re.sub(r"[^ !#-\[\]-~]", "_", filename)
    exact = quote(filename, safe="")
    return {
        "content-disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}",
        "x-content-type-options": "nosniff",
    }


def _asked(headers: Mapping[str, str], etag: str, size: int) -> tuple[int, int] | None:
    """The one range that is asked for, as start and end; None: all. Raises 416 if it is beyond the end.

    Several ranges, and what is no range of bytes, are as good as none (RFC 9110, 14.2).
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
