"""Finds the inputs that a user names: files, patterns, folders, `-`, pipes and URLs.

Each becomes a local file that can be read again. Pipes and URLs are copied to the spool for that.
"""

import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from batchline.files.inputs import urls
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import InputLimits, format_of
from batchline.files.inputs.spool import Spool

STDIN = "-"
_READ = 1024 * 1024
# A pattern that spells how `run` names its outputs means them.
_OUTPUT = re.compile(r"\.(output|errors|manifest)\.[^/]*$")
# Whether a file that a pattern or a folder gives is an output of Batchline, and so is left out.
IsOutput = Callable[[Path], bool]


class LocatedInput(msgspec.Struct, frozen=True):
    """`name` is for people. A copy in the spool is no original."""

    name: str
    path: Path
    is_original: bool = True


def locate(given: str, spool: Spool, limits: InputLimits, is_output: IsOutput) -> Iterator[LocatedInput]:
    """The files that a user means, in order. Raises InputRefused, or OSError if one cannot be read."""
    if given == STDIN:
        yield LocatedInput("stdin", _copied("stdin", _pieces(sys.stdin.buffer), spool, limits), False)
        return
    if urls.is_url(given):
        for url in urls.expand(given):
            name = urls.public_name(url)
            yield LocatedInput(name, _copied(name, urls.blocks(url), spool, limits), False)
        return
    path = Path(given)
    if not os.path.lexists(path) and glob.has_magic(given):
        yield from _matching(given, is_output)
        return
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        yield from _inside(path, is_output)
    elif stat.S_ISREG(mode):
        yield LocatedInput(path.name, path)
    else:
        with path.open("rb") as stream:
            yield LocatedInput(path.name, _copied(path.name, _pieces(stream), spool, limits), False)


def _matching(pattern: str, is_output: IsOutput) -> Iterator[LocatedInput]:
    files = [path for each in sorted(glob.glob(pattern, recursive=True)) if (path := Path(each)).is_file()]
    if not files:
        raise InputRefused(pattern, "no file matches it")
    if _OUTPUT.search(pattern) is None:
        files = _not_written(pattern, files, is_output)
    for path in files:
        yield LocatedInput(str(path), path)


def _inside(folder: Path, is_output: IsOutput) -> Iterator[LocatedInput]:
    """The files in a folder and its folders whose names tell a format."""
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and format_of(path.name) is not None
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not files:
        raise InputRefused(str(folder), "the folder has no file whose name ends in .jsonl, .csv, .parquet, …")
    for path in _not_written(str(folder), files, is_output):
        yield LocatedInput(str(path.relative_to(folder)), path)


def _not_written(given: str, files: Sequence[Path], is_output: IsOutput) -> list[Path]:
    kept = [path for path in files if not is_output(path)]
    if not kept:
        raise InputRefused(given, "Batchline wrote all files that it has; to use one as input, name it")
    return kept


def _copied(name: str, blocks: Iterable[bytes], spool: Spool, limits: InputLimits) -> Path:
    return spool.save(_limited(name, blocks, limits.max_bytes))


def _limited(name: str, blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    size = 0
    for block in blocks:
        size += len(block)
        if size > max_bytes:
            raise InputRefused(name, f"it has more than {max_bytes:,} bytes; raise --max-input-size")
        yield block


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(_READ):
        yield piece
