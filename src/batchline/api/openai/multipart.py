"""Streaming parser for multipart/form-data with one file. Fields are kept; the file is yielded in blocks.

Fields may come before and after the file. Everything that a client controls is limited: the number of parts,
their headers, the fields, the bytes around the parts, and the time without data.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from batchline.api.errors import NO_RETRY, ApiError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_MAX_PARTS = 32
_MAX_HEADERS = 16
_HEADER_BYTES = 4096
_FIELD_BYTES = 64 * 1024
# Everything but the file: boundaries, headers, fields, and data after the last boundary.
MAX_OVERHEAD = 2 * 1024 * 1024
_SILENCE = 60.0
# After this many seconds of waiting in total, a client must have sent this many bytes per second.
_PATIENCE = 120.0
_MIN_RATE = 1024
_MAX_FILENAME = 255
_MAX_NAME = 128
# Control characters, and characters that change the direction of text.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class FilePart:
    """The headers of the part that is the file."""

    name: str
    filename: str
    content_type: str


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the file."""


_Event: TypeAlias = FilePart | _Field | bytes | _End


class Form:
    """A form with one file, read in the order of its parts.

    form = form_of(request, "file", limit)
    part = await form.reach_file()
    async for block in form.content(): …
    await form.rest()
    """

    def __init__(
        self,
        content_type: str | None,
        body: AsyncIterable[bytes],
        *,
        file: str,
        maximum: int,
        announced: str | None = None,
        silence: float = _SILENCE,
    ) -> None:
        # Content-Length: refuse a body that is too large without reading it.
        if announced is not None and announced.isdecimal() and int(announced) > maximum + MAX_OVERHEAD:
            raise too_large(maximum, file)
        self.fields: dict[str, str] = {}
        self.file: FilePart | None = None
        self._body = body.__aiter__()
        self._file = file
        self._maximum = maximum
        self._silence = silence
        self._size = 0
        self._waited = 0.0
        self._events: deque[_Event] = deque()
        self._parts = _Parts(self._events, file)
        self._parser = MultipartParser(
            _boundary(content_type),
            self._parts.callbacks(),
            max_header_count=_MAX_HEADERS,
            max_header_size=_HEADER_BYTES,
        )
        self._over = False

    async def reach_file(self) -> FilePart:
        """Read up to the content of the file. Raises ApiError if there is no file."""
        while (event := await self._next()) is not None:
            match event:
                case FilePart():
                    self.file = event
                    return event
                case _Field(name, value):
                    self._keep(name, value)
        raise missing(self._file)

    async def content(self) -> AsyncIterator[bytes]:
        while not isinstance(event := await self._next(), _End):
            assert isinstance(event, bytes), "a form ends after its file does"
            yield event

    async def rest(self) -> None:
        """Read the fields after the file. Only then is the form known to be complete."""
        while (event := await self._next()) is not None:
            match event:
                case FilePart():
                    raise _malformed(f"The form has more than one '{self._file}'. Send only one.", self._file)
                case _Field(name, value):
                    self._keep(name, value)

    def _keep(self, name: str, value: str) -> None:
        if name in self.fields:
            raise _malformed(f"The form has more than one '{name}'.", name)
        self.fields[name] = value

    async def _next(self) -> _Event | None:
        while not self._events:
            if self._over:
                return None
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        requested_at = time.monotonic()
        try:
            async with asyncio.timeout(self._silence):
                block = await anext(self._body, None)
        except TimeoutError:
            raise _too_slow(f"No data arrived for {self._silence:g} s") from None
        except ClientDisconnect:
            # The client is gone: only the log shows this.
            raise ApiError(400, "The client disconnected.", code="disconnected") from None
        if block is None:
            self._over = True
            if not self._parts.ended:
                raise _malformed("The body ends before its last boundary. Send the whole form.")
            return
        self._size += len(block)
        self._waited += time.monotonic() - requested_at
        if self._waited > _PATIENCE and self._size < self._waited * _MIN_RATE:
            raise _too_slow(f"Only {self._size:,} bytes arrived in {self._waited:.0f} s")
        if self._size > self._maximum + MAX_OVERHEAD:
            raise too_large(self._maximum, self._file)
        try:
            self._parser.write(block)
        except FormParserError as error:
            raise _malformed(f"The body is not valid multipart/form-data: {error}.") from None


def form_of(request: Request, file: str, maximum: int) -> Form:
    """The form in a request. Its field `file` is the file, with at most `maximum` bytes."""
    headers = request.headers
    return Form(
        headers.get("content-type"),
        request.stream(),
        file=file,
        maximum=maximum,
        announced=headers.get("content-length"),
    )


class _Parts:
    """Turns callbacks of the parser into events."""

    def __init__(self, events: deque[_Event], file: str) -> None:
        self.ended = False
        self._events = events
        self._file = file
        self._count = 0
        self._header = b""
        self._value = b""
        self._headers: dict[bytes, bytes] = {}
        # Name of the current field; None: in the file, or between parts.
        self._name: str | None = None
        self._text = bytearray()

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._count += 1
        if self._count > _MAX_PARTS:
            raise _malformed(f"The form has more than {_MAX_PARTS} parts.")
        self._headers = {}
        self._name = None
        self._text.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = _text(options.get(b"name", b""))
        if kind != b"form-data" or not name or len(name) > _MAX_NAME:
            raise _malformed("A part of the form has no valid name in its Content-Disposition.")
        if name == self._file:
            filename = clean_filename(_text(options.get(b"filename", b"")))
            content_type = _text(self._headers.get(b"content-type", b"application/octet-stream"))
            self._events.append(FilePart(name, filename, content_type))
        elif b"filename" in options:
            raise _malformed(f"'{name}' must not be a file.", name)
        else:
            self._name = name

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self._events.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > _FIELD_BYTES:
            raise _malformed(f"'{self._name}' is longer than {_FIELD_BYTES} bytes.", self._name)

    def _part_end(self) -> None:
        if self._name is None:
            self._events.append(_End())
            return
        try:
            value = self._text.decode()
        except UnicodeDecodeError:
            raise _malformed(f"'{self._name}' is not UTF-8.", self._name) from None
        self._events.append(_Field(self._name, value))

    def _end(self) -> None:
        self.ended = True


def clean_filename(name: str) -> str:
    """The last segment of a client's path: printable, short and never empty."""
    last = re.split(r"[/\\]", _UNPRINTABLE.sub("", name))[-1].strip()
    if last in ("", ".", ".."):
        return "upload"
    # Keeps the extension.
    return last if len(last) <= _MAX_FILENAME else last[: _MAX_FILENAME - 20] + last[-20:]


def missing(param: str) -> ApiError:
    message = f"Missing required parameter: '{param}'."
    return ApiError(400, message, code="missing_required_parameter", param=param)


def too_large(maximum: int, param: str) -> ApiError:
    message = f"'{param}' is too large: at most {maximum:,} bytes are allowed."
    return ApiError(413, message, code="file_too_large", param=param, headers=NO_RETRY)


def _too_slow(what: str) -> ApiError:
    return ApiError(408, f"{what}, so the upload was aborted. Try again.", code="timeout")


def _malformed(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, code="invalid_form", param=param)


def _boundary(content_type: str | None) -> bytes:
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        raise ApiError(
            415, "The body must be multipart/form-data.", code="unsupported_media_type", param="Content-Type"
        )
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise _malformed("Content-Type must give a boundary of 1 to 70 characters.", "Content-Type")
    return boundary


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
