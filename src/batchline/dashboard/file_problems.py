"""Files as the dashboard lists them, and why no batch can run over one: each problem with its line."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from batchline.files.objects import ObjectNotFound, Objects
from batchline.model import File, ids
from batchline.store import files
from batchline.store.files import FileContents
from batchline.store.session import Session

# Of a file, its beginning is searched for the lines with problems.
_SEARCHED = 4 * 1024 * 1024
_EXCERPT = 200
_MAX_MODELS = 20


class FileFigures(msgspec.Struct, frozen=True):
    id: str
    name: str
    purpose: str
    bytes: int
    lines: int
    problems: int
    created_at: datetime
    expires_at: datetime | None
    # Null: its lines have several, or none.
    endpoint: str | None
    # The first ones.
    models: Sequence[str]


class FileProblem(msgspec.Struct, frozen=True):
    """`excerpt`: the beginning of the line; null: it is not in the first 4 MiB of the file."""

    line: int | None
    code: str
    message: str
    excerpt: str | None


async def figures_of_files(session: Session, found: Sequence[File]) -> list[FileFigures]:
    """In the same order."""
    contents = {each.id: each for each in await files.contents(session, [file.id for file in found])}
    return [_figures_of_file(file, contents.get(file.id)) for file in found]


def _figures_of_file(file: File, contents: FileContents | None) -> FileFigures:
    models, urls = ((), ()) if contents is None else (contents.models, contents.urls)
    return FileFigures(
        ids.show(ids.FILE, file.id),
        file.filename,
        file.purpose,
        file.bytes,
        file.line_count,
        len(file.errors or ()),
        file.created_at,
        file.expires_at,
        urls[0] if len(urls) == 1 else None,
        models[:_MAX_MODELS],
    )


async def read(objects: Objects, file: File) -> list[FileProblem]:
    problems = file.errors or ()
    numbers = {each.line for each in problems if each.line is not None}
    excerpts = await _excerpts(objects, file, numbers) if numbers else {}
    return [
        FileProblem(each.line, each.code, each.message, excerpts.get(each.line or 0)) for each in problems
    ]


async def _excerpts(objects: Objects, file: File, numbers: set[int]) -> dict[int, str]:
    if file.object_key is None:
        return {}
    content = bytearray()
    try:
        end = min(file.bytes, _SEARCHED)
        async for block in objects.read(file.object_key, start=0, end=end):
            content += block
    except ObjectNotFound:
        # It is being deleted.
        return {}
    return _lines(bytes(content), numbers, whole=file.bytes <= _SEARCHED)


def _lines(content: bytes, numbers: set[int], *, whole: bool) -> dict[int, str]:
    lines: Sequence[bytes] = content.split(b"\n")
    # The last one may be cut.
    known = len(lines) if whole else len(lines) - 1
    return {
        number: lines[number - 1][: _EXCERPT * 4].decode("utf-8", "replace")[:_EXCERPT]
        for number in numbers
        if 1 <= number <= known
    }
