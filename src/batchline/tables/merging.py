"""Merges the output and error lines of a batch into one stream in input order.

Both are in input order, and the id of a line ends with the line's number in the input.
"""

from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterable

import msgspec


class NumberedLines(msgspec.Struct, frozen=True):
    """Some lines, each with its number in the input."""

    numbers: list[int]
    lines: list[bytes]


class _LineId(msgspec.Struct):
    id: str


_read_id = msgspec.json.Decoder(_LineId).decode


def _number(line: bytes) -> int:
    return int(_read_id(line).id.rpartition("_")[2])


async def merged(*streams: AsyncIterable[bytes]) -> AsyncGenerator[NumberedLines, None]:
    """The lines of all streams, by number. A stream is read no further than needed."""
    open_streams = [_Stream(numbered(stream)) for stream in streams]
    while open_streams := [stream for stream in open_streams if await stream.fill()]:
        first = min(open_streams, key=lambda stream: stream.numbers[0])
        others = [stream.numbers[0] for stream in open_streams if stream is not first]
        yield first.take(bisect_left(first.numbers, min(others)) if others else len(first.numbers))


async def numbered(blocks: AsyncIterable[bytes]) -> AsyncGenerator[NumberedLines, None]:
    """Whole lines of blocks that may end anywhere."""
    rest = b""
    async for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield NumberedLines(list(map(_number, lines)), lines)
    if rest:
        yield NumberedLines([_number(rest)], [rest])


class _Stream:
    def __init__(self, source: AsyncGenerator[NumberedLines, None]) -> None:
        self._source = source
        self.numbers: list[int] = []
        self._lines: list[bytes] = []

    async def fill(self) -> bool:
        """Whether there are more lines."""
        if not self.numbers and (more := await anext(self._source, None)) is not None:
            self.numbers, self._lines = more.numbers, more.lines
        return bool(self.numbers)

    def take(self, count: int) -> NumberedLines:
        taken = NumberedLines(self.numbers[:count], self._lines[:count])
        self.numbers, self._lines = self.numbers[count:], self._lines[count:]
        return taken
