"""Lines in input order, page by page, for readers that may be slow.

Each page is a separate statement. Between two pages nothing is held in the database, neither a connection nor
a snapshot. The size of a page is limited, so it needs little memory. Every line comes once and in order.
While a batch runs, lines that finish meanwhile are included if they lie ahead of the reader.
"""

import re
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from batchline.store.outputs import FileMissing, find_lanes
from batchline.store.session import Session
from batchline.store.statements import statement

# Bytes per page.
ROOM = 128 * 1024
_ANY_SIZE = 2**31 - 1
_FIRST_WIDTH, _MAX_WIDTH = 256, 8192
_LAST_LINE = 2**31 - 1
_MARKS = (b"\r", b"\x01", b"\x02")
_BREAKS = re.compile(rb"[\n\r\x01\x02]")
_CONTROL_TO_SPACE = bytes.maketrans(bytes(range(32)), b" " * 32)

Numbered = tuple[int, bytes | None]


class Page(msgspec.Struct, frozen=True):
    """Lines as bytes. `large`: the page is empty because the next line is too large for a page."""

    lines: bytes = b""
    large: bool = False


class LineSource(Protocol):
    """A source of numbered lines."""

    async def page(self, session: Session, after: int, until: int, room: int) -> Sequence[Numbered]:
        """Read lines by number, up to `room` bytes; None for a line that is larger."""
        ...

    async def next_line(self, session: Session, after: int) -> int | None: ...

    def passed(self, lines: Sequence[int]) -> None:
        """Called with the numbers of the lines that the reader has received."""
        ...


class Pages:
    """One reader's position in the lines of a source."""

    def __init__(self, source: LineSource, room: int) -> None:
        self._source = source
        self._room = room
        self._after = 0
        # How many line numbers to query for one page: about as many as fill it.
        self._width = _FIRST_WIDTH
        self.count = 0

    async def read(self, session: Session) -> Page | None:
        """Read the next page. Return None at the end."""
        while True:
            until = min(self._after + self._width, _LAST_LINE)
            found = await self._source.page(session, self._after, until, self._room)
            if found:
                break
            following = await self._source.next_line(session, until)
            if following is None:
                return None
            self._after = following - 1
            self._width = min(2 * self._width, _MAX_WIDTH)
        fitting = _before_large(found)
        if not fitting:
            self._after = found[0][0] - 1
            return Page(large=True)
        return Page(self._taken(fitting))

    async def read_large(self, session: Session) -> bytes:
        """Read the next line, whatever its size. Call this after a page with `large`."""
        found = await self._source.page(session, self._after, self._after + 1, _ANY_SIZE)
        return self._taken(_before_large(found))

    def _taken(self, found: Sequence[tuple[int, bytes]]) -> bytes:
        lines = _joined([line for _, line in found])
        last = found[-1][0] if found else self._after
        full = len(lines) >= self._room
        # As many numbers as this full page covered, plus a quarter in case the next lines are shorter.
        width = (last - self._after) * 5 // 4 + 1 if full else 2 * self._width
        self._width = min(width, _MAX_WIDTH)
        self._after = last
        self.count += len(found)
        self._source.passed([number for number, _ in found])
        return lines


class _Results:
    """The completed lines of a batch."""

    def __init__(self, lanes: list[int]) -> None:
        self._lanes = lanes

    async def page(self, session: Session, after: int, until: int, room: int) -> Sequence[Numbered]:
        params = {"lanes": self._lanes, "after": after, "until": until, "room": room}
        return [(number, line) for number, line in await session.raw_rows(statement("page_results"), params)]

    async def next_line(self, session: Session, after: int) -> int | None:
        ((number,),) = await session.rows(statement("next_result"), {"lanes": self._lanes, "after": after})
        return None if number is None else int(number)

    def passed(self, lines: Sequence[int]) -> None:
        pass


class _Requests:
    """The lines of an input file. Within a lane they are in the order of their ordinals."""

    def __init__(self, file_no: int, urls: dict[int, str]) -> None:
        self._file_no = file_no
        self._urls = urls
        self._cursors = dict.fromkeys(urls, 0)
        self._lane_of: dict[int, int] = {}

    async def page(self, session: Session, after: int, until: int, room: int) -> Sequence[Numbered]:
        params = {**self._lanes(), "urls": list(self._urls.values())}
        params |= {"after": after, "until": until, "room": room}
        rows = await session.raw_rows(statement("page_requests"), params)
        self._lane_of = {number: lane for number, _, lane in rows}
        return [(number, line) for number, line, _ in rows]

    async def next_line(self, session: Session, after: int) -> int | None:
        ((number,),) = await session.rows(statement("next_request"), self._lanes())
        return None if number is None else int(number)

    def passed(self, lines: Sequence[int]) -> None:
        for number in lines:
            self._cursors[self._lane_of[number]] += 1

    def _lanes(self) -> dict[str, object]:
        return {
            "file_no": self._file_no,
            "lane_nos": list(self._cursors),
            "cursors": list(self._cursors.values()),
        }


async def of_output(session: Session, batch_id: UUID, room: int = ROOM) -> Pages:
    """Pages of the lines that a batch has completed so far."""
    return Pages(_Results([lane.id for lane in await find_lanes(session, batch_id)]), room)


async def of_input(session: Session, file_id: UUID, room: int = ROOM) -> Pages:
    """Pages of the requests of an input file whose content is in `lines`."""
    rows = await session.rows(statement("lanes_of_file"), {"file": file_id})
    if not rows:
        raise FileMissing(f"file {file_id} has no lines")
    return Pages(_Requests(rows[0][0], {lane_no: url for _, lane_no, url in rows}), room)


def _before_large(found: Sequence[Numbered]) -> list[tuple[int, bytes]]:
    fitting: list[tuple[int, bytes]] = []
    for number, line in found:
        if line is None:
            break
        fitting.append((number, line))
    return fitting


def _joined(lines: Sequence[bytes]) -> bytes:
    """Join the lines, one item per line, with the same bytes as the finished file (store/outputs.py).

    JSON allows line breaks only between values, where a space means the same.
    """
    block = b"".join(line + b"\n" for line in lines)
    if block.count(b"\n") == len(lines) and not any(mark in block for mark in _MARKS):
        return block
    return b"".join(
        (line.translate(_CONTROL_TO_SPACE) if _BREAKS.search(line) else line) + b"\n" for line in lines
    )
