"""Where a key stands in the file. TOML's parser does not say."""

import re
from collections.abc import Iterator
from typing import TypeAlias

# A table, its number among those of its name, and a key of it, or None for the table itself.
Runtime: TypeAlias = tuple[str, int, str | None]

_HEADER = re.compile(r"\s*\[(\[)?\s*([A-Za-z0-9_-]+)((?:\s*\.\s*[A-Za-z0-9_$\"'-]+)*)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")


def line_of(text: str, position: Runtime) -> int | None:
    """The line of a key, or of its table where it is written in another way."""
    table, number, _ = position
    parent, _, name = table.rpartition(".")
    best = None
    for line, found in _keys(text):
        if found == position:
            return line
        if best is None and found in ((table, number, None), ("", 0, table), (parent, number, name)):
            best = line
    return best


def _keys(text: str) -> Iterator[tuple[int, Runtime]]:
    """Where the tables and keys are, as they are usually written. A table inside another is a key of it."""
    table, counts = "", {"": 0}
    for line, content in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(content):
            parts = [header[2], *(part.strip(" \t\"'") for part in header[3].split(".")[1:])]
            if len(parts) == 1:
                table = parts[0]
                counts[table] = counts.get(table, -1) + 1
                yield line, (table, counts[table], None)
            else:
                table = ".".join(parts)
                yield line, (parts[0], counts.get(parts[0], 0), parts[1])
                counts[table] = 0 if header[2] == "packs" else counts.get(parts[0], 0)
                yield line, (table, counts[table], None)
        elif key := _KEY.match(content):
            yield line, (table, counts[table], key[1])
