"""Reads and renders inputs in a process of its own, which can be ended if a template never ends.

The process answers with messages: a block of request lines, the end of a file, or an error. Before each row
it writes the row's number to a shared cell. If it spends more than the limit of processor time on one row, it
is ended, and the cell says which row it was.
"""

import asyncio
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec
import psutil

from batchline.files.inputs.errors import InputRefused, RowFault, StreamFault
from batchline.files.inputs.formats import InputFile, InputLimits
from batchline.files.inputs.rendering import Renderer, RowTemplate
from batchline.files.inputs.rows import numbered_rows
from batchline.files.inputs.streams import open_bytes
from batchline.host.subprocesses import begin_child, receive, send

_BLOCK = 128 * 1024
_LOOK = 0.25
# Values of the cell that are no rows.
_NO_ROW, _COMPILING = 0, -1


class RenderRequest(msgspec.Struct, frozen=True):
    files: tuple[InputFile, ...]
    template: RowTemplate | None
    limits: InputLimits
    cell: int


class RenderedBlock(msgspec.Struct, frozen=True, tag="block"):
    lines: bytes


class RenderedEnd(msgspec.Struct, frozen=True, tag="end"):
    """The end of one file."""


class RenderRefused(msgspec.Struct, frozen=True, tag="refused"):
    name: str
    message: str
    row: int | None


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(RenderRequest).decode
_answers: "msgspec.msgpack.Decoder[RenderedBlock | RenderedEnd | RenderRefused]" = msgspec.msgpack.Decoder(
    RenderedBlock | RenderedEnd | RenderRefused
)


@asynccontextmanager
async def rendered(
    files: Sequence[InputFile], template: RowTemplate | None, limits: InputLimits
) -> AsyncIterator["RenderProcess"]:
    """Start a process that renders the files. It ends with the context."""
    with tempfile.TemporaryFile() as shared:
        shared.truncate(mmap.PAGESIZE)
        with (
            mmap.mmap(shared.fileno(), mmap.PAGESIZE) as memory,
            memoryview(memory) as view,
            view.cast("q") as cell,
        ):
            process = RenderProcess(_start(shared.fileno()), limits, cell)
            try:
                process.begin(_encode(RenderRequest(tuple(files), template, limits, shared.fileno())))
                yield process
            finally:
                await process.close()


def _start(cell: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "batchline.files.inputs.process"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(cell,))


class RenderProcess:
    """The parent's side. Iterate `lines` once for each file, in their order."""

    def __init__(self, child: subprocess.Popen[bytes], limits: InputLimits, cell: memoryview) -> None:
        self._child = child
        self._limits = limits
        self._cell = cell
        self._ahead: asyncio.Future[bytes | None] | None = None

    @property
    def process_id(self) -> int:
        return self._child.pid

    def begin(self, request: bytes) -> None:
        assert self._child.stdin is not None
        # If the child is gone already, its missing answer is reported.
        with suppress(BrokenPipeError):
            send(self._child.stdin, request)

    async def lines(self, file: InputFile) -> AsyncGenerator[bytes, None]:
        """The request lines of one file, in blocks. Raises InputRefused."""
        while True:
            answer = await self._next(file)
            match answer:
                case RenderedBlock(lines):
                    yield lines
                case RenderedEnd():
                    return
                case RenderRefused(name, message, row):
                    raise InputRefused(name, message, row)

    async def close(self) -> None:
        self._child.kill()
        if self._ahead is not None:
            # The read ends with the child.
            await asyncio.wait([self._ahead])
        await asyncio.to_thread(self._child.wait)
        for stream in (self._child.stdin, self._child.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()

    async def _next(self, file: InputFile) -> RenderedBlock | RenderedEnd | RenderRefused:
        reading = self._ahead or self._read()
        self._ahead = reading
        message = await self._watched(reading, file)
        self._ahead = None
        if message is None:
            raise InputRefused(file.name, self._lost())
        answer = _answers.decode(message)
        if not isinstance(answer, RenderRefused):
            # The next block is read while this one is used.
            self._ahead = self._read()
        return answer

    def _read(self) -> "asyncio.Future[bytes | None]":
        assert self._child.stdout is not None
        return asyncio.ensure_future(asyncio.to_thread(receive, self._child.stdout))

    async def _watched(self, reading: "asyncio.Future[bytes | None]", file: InputFile) -> bytes | None:
        """Wait for a message. End the process if one row takes it too much processor time."""
        row, since = _NO_ROW, 0.0
        while not reading.done():
            await asyncio.wait([reading], timeout=_LOOK)
            now, used = int(self._cell[0]), self._processor_time()
            if now != row:
                row, since = now, used
            elif row != _NO_ROW and used - since >= self._limits.render_seconds and not reading.done():
                self._child.kill()
                limit = f"{self._limits.render_seconds:g} s"
                if row == _COMPILING:
                    raise InputRefused(file.name, f"the template does not compile within {limit}")
                message = f"the template does not end within {limit}; does it loop for ever?"
                raise InputRefused(file.name, message, row)
        return reading.result()

    def _processor_time(self) -> float:
        try:
            times = psutil.Process(self._child.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _lost(self) -> str:
        code = self._child.wait()
        row = int(self._cell[0])
        where = f" at row {row}" if row > _NO_ROW else ""
        return f"the process that reads it ended unexpectedly{where} (exit code {code})"


def main() -> None:
    """The child: render the files of one request."""
    # The parent waits for this process, so it gets no priority.
    answers = begin_child(nice=False)
    message = receive(sys.stdin.buffer)
    if message is None:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request = _decode_request(message)
    _limit_memory(request.limits.memory)
    with (
        os.fdopen(request.cell, "r+b", buffering=0) as shared,
        mmap.mmap(shared.fileno(), mmap.PAGESIZE) as memory,
        memoryview(memory) as view,
        view.cast("q") as cell,
    ):
        try:
            for answer in answers_to(request, cell):
                send(answers, _encode(answer))
        except InputRefused as refused:
            send(answers, _encode(RenderRefused(refused.name, refused.message, refused.row)))
    # Only now: the parent may still read.
    answers.close()


def _end_with_parent() -> None:
    # Not through `sys.stdin`: a thread that holds its lock aborts the interpreter when that ends.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


def _limit_memory(limit: int) -> None:
    """Limit the private memory, so that no template and no damaged file takes all of the machine's."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def answers_to(request: RenderRequest, cell: memoryview) -> Iterator[RenderedBlock | RenderedEnd]:
    renderer, before = None, 0
    if request.template is not None:
        cell[0] = _COMPILING
        try:
            renderer = Renderer(request.template, request.limits)
        except RowFault as fault:
            raise InputRefused(request.files[0].name, str(fault)) from fault
        cell[0] = _NO_ROW
    for file in request.files:
        if file.is_envelope:
            blocks = _passed_on(file, request.limits)
        else:
            assert renderer is not None
            blocks = _rendered(file, renderer, request.limits, cell, before)
        for block in blocks:
            before += block.count(b"\n")
            yield RenderedBlock(block)
        yield RenderedEnd()


def _passed_on(file: InputFile, limits: InputLimits) -> Iterator[bytes]:
    """Request lines as they are. The last one gets a line feed, so that lines can be counted."""
    last = b"\n"
    try:
        with open_bytes(file, limits) as stream:
            while block := stream.read(_BLOCK):
                last = block
                yield block
    except StreamFault as fault:
        raise InputRefused(file.name, str(fault)) from fault
    if not last.endswith(b"\n"):
        yield b"\n"


def _rendered(
    file: InputFile, renderer: Renderer, limits: InputLimits, cell: memoryview, before: int
) -> Iterator[bytes]:
    """One line for each row, so that the number of a line is the number of its row."""
    lines, size = [], 0
    for number, row in numbered_rows(file, limits):
        cell[0] = number
        try:
            line = b"\n" if row is None else renderer.line(row, before + number, file.format)
        except RowFault as fault:
            raise InputRefused(file.name, str(fault), number) from fault
        cell[0] = _NO_ROW
        lines.append(line)
        size += len(line)
        if size >= _BLOCK:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)


if __name__ == "__main__":
    main()
