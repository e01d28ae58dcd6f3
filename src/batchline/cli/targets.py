"""Output files and streams of a command.

A regular file appears complete or not at all. A symbolic link stays a link; its target is replaced. Only
files that Batchline wrote are replaced, unless `--force` is given. An input is never replaced. Pipes, devices
and open descriptors are written to directly.
"""

import asyncio
import errno
import hashlib
import os
import select
import stat
import tempfile
from collections.abc import AsyncGenerator, Iterable
from contextlib import closing
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from batchline.cli.display.console import CommandError
from batchline.cli.written import WrittenFiles
from batchline.host.disk import full_message, is_full

_STDOUT = 1
_AWAIT_READER = 0.1
_AWAIT_ROOM = 0.01


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """One output. `descriptor` is an open stream; `through` is set for pipes and devices that have a name."""

    given: Path
    path: Path
    descriptor: int | None = None
    through: bool = False

    @property
    def name(self) -> str:
        return "stdout" if str(self.given) == "-" else str(self.given.absolute())

    @property
    def is_stdout(self) -> bool:
        return self.descriptor == _STDOUT

    @property
    def is_file(self) -> bool:
        return self.descriptor is None and not self.through


def target_at(given: Path) -> OutputTarget:
    """The target at a path. Raises CommandError if it cannot be written to."""
    if str(given) == "-":
        return OutputTarget(given, given, _STDOUT)
    if (descriptor := _descriptor(given.absolute())) is not None:
        return OutputTarget(given, given, descriptor)
    real = Path(os.path.realpath(given))
    if real.is_dir():
        raise CommandError(f"{given} is a folder; give a file to write to")
    if not real.parent.is_dir():
        raise CommandError(f"{given}: the folder {real.parent} does not exist; create it first")
    return OutputTarget(given, real, through=real.exists() and not real.is_file())


@dataclass(frozen=True, slots=True)
class WrittenOutput:
    """What was written: its line feeds, its bytes and their digest."""

    lines: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Outputs:
    """Which files a command may replace: those that Batchline wrote, or all with `--force`."""

    written: WrittenFiles
    force: bool

    def check(self, target: OutputTarget, inputs: Iterable[Path] = ()) -> None:
        """Raises CommandError if writing to `target` would replace an input or a file of the user."""
        if not target.is_file:
            return
        for path in inputs:
            if target.path.exists() and target.path.samefile(path):
                raise CommandError(f"{target.name} is also the input {path}; give another output file")
        if target.path.exists() and not self.force and not self.written.knows(target.path):
            raise CommandError(
                f"{target.name} exists, and Batchline did not write it, or it has changed since; "
                "give another file, or --force to replace it"
            )

    async def write(self, target: OutputTarget, blocks: AsyncGenerator[bytes, None]) -> WrittenOutput:
        """Write all blocks to `target`, a file completely or not at all."""
        try:
            if target.is_file:
                return await self._replace(target, blocks)
            return await _write_through(target, blocks)
        except OSError as error:
            if not is_full(error):
                raise
            raise CommandError(full_message(target.name)) from error

    def remove(self, target: OutputTarget) -> None:
        """Remove the file of an earlier run, if Batchline wrote it."""
        if target.is_file and target.path.exists() and self.written.knows(target.path):
            target.path.unlink()

    def _remember(self, path: Path, digest: str) -> None:
        try:
            self.written.remember(path, digest)
        except OSError as error:
            if is_full(error):
                raise CommandError(full_message(self.written.folder)) from error
            raise

    async def _replace(self, target: OutputTarget, blocks: AsyncGenerator[bytes, None]) -> WrittenOutput:
        path, count = target.path, _Count()
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                async for block in blocks:
                    count.add(block)
                    await asyncio.to_thread(stream.write, block)
                stream.flush()
                await asyncio.to_thread(os.fsync, stream.fileno())
            # Check again: a batch may run for hours, and a file may have appeared here meanwhile.
            await asyncio.to_thread(self.check, target)
            os.chmod(temporary, _mode(path))
            await asyncio.to_thread(self._remember, path, count.written.sha256)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return count.written


class _Count:
    """Counts and hashes blocks."""

    def __init__(self) -> None:
        self._lines, self._size, self._digest = 0, 0, hashlib.sha256()

    def add(self, block: bytes) -> None:
        self._lines += block.count(b"\n")
        self._size += len(block)
        self._digest.update(block)

    @property
    def written(self) -> WrittenOutput:
        return WrittenOutput(self._lines, self._size, self._digest.hexdigest())


async def _write_through(target: OutputTarget, blocks: AsyncGenerator[bytes, None]) -> WrittenOutput:
    # Read the first block before opening: if reading fails, a pipe must not be opened and closed.
    block, count = await anext(blocks, None), _Count()
    with closing(await _open(target)) as stream:
        while block is not None:
            count.add(block)
            await _write_all(target, stream, block)
            block = await anext(blocks, None)
    return count.written


async def _open(target: OutputTarget) -> FileIO:
    if target.descriptor is not None:
        return FileIO(os.dup(target.descriptor), "wb")
    while True:
        try:
            # A blocking open of a pipe without a reader would ignore Ctrl-C.
            descriptor = os.open(target.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not target.path.is_fifo():
                raise
            await asyncio.sleep(_AWAIT_READER)
        else:
            os.set_blocking(descriptor, True)
            return FileIO(descriptor, "wb")


async def _write_all(target: OutputTarget, stream: FileIO, block: bytes) -> None:
    """Write as the reader reads. A slow one does not block the event loop: a batch may still be running."""
    rest, room, chunk = memoryview(block), select.poll(), _chunk(stream)
    room.register(stream, select.POLLOUT)
    try:
        while rest:
            if room.poll(0):
                rest = rest[stream.write(rest[:chunk]) :]
            else:
                await asyncio.sleep(_AWAIT_ROOM)
    except BrokenPipeError as error:
        if target.is_stdout:
            raise
        raise CommandError(f"{target.name}: the reader closed the pipe before the last line") from error


def _chunk(stream: FileIO) -> int:
    """Bytes to write at once. A pipe with room takes so many without blocking; a file has no limit."""
    return 2**30 if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) else select.PIPE_BUF


def _descriptor(path: Path) -> int | None:
    """The number of /dev/stdout, /dev/fd/N and links to them. An open file may have no name."""
    descriptors = Path("/dev/fd").resolve()
    for _ in range(40):  # the kernel follows 40 links
        if path.parent.resolve() == descriptors and path.name.isdigit():
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def _mode(path: Path) -> int:
    """The permissions of the file to replace, or those of any new file."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0o666 & ~_umask()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
