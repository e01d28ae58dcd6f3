"""batchline.toml as it is written: its tables, and the line of each key for errors."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

# A table, its number among those of its name, and a key of it, or None for the table itself.
Position: TypeAlias = tuple[str, int, str | None]

_HEADER = re.compile(r"\s*\[(\[)?\s*([A-Za-z0-9_-]+)((?:\s*\.\s*[A-Za-z0-9_$\"'-]+)*)\s*\]\]?\s*(?:#.*)?")
# Tables that contain a table for each name.
_BY_NAME = ("packs", "stages")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")


class SettingsError(Exception):
    """The settings cannot be used. The message says where the mistake is and what to do."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    name: str
    text: str
    tables: dict[str, Any]

    def error(self, position: Position, key: str, why: str) -> SettingsError:
        return SettingsError(f"{self.where(position)}: {key}: {why}")

    def where(self, position: Position) -> str:
        line = _line_of(self.text, position)
        return self.name if line is None else f"{self.name}, line {line}"


def read_file(path: Path | None) -> SettingsFile:
    """The file, or an empty one where there is none. Raises SettingsError."""
    if path is None:
        return SettingsFile("", "", {})
    try:
        text = path.read_text(encoding="utf-8")
        return SettingsFile(str(path), text, tomllib.loads(text))
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from None


def _line_of(text: str, position: Position) -> int | None:
    """The line of a key, or of its table if the key is written in another way."""
    table, number, _ = position
    parent, _, name = table.rpartition(".")
    best = None
    for line, found in _positions(text):
        if found == position:
            return line
        if best is None and found in ((table, number, None), ("", 0, table), (parent, number, name)):
            best = line
    return best


def _positions(text: str) -> Iterator[tuple[int, Position]]:
    """The lines of tables and keys as they are usually written. TOML's parser does not give them."""
    table, counts = "", {"": 0}
    for line, content in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(content):
            parts = [header[2], *(part.strip(" \t\"'") for part in header[3].split(".")[1:])]
            if len(parts) == 1:
                table = parts[0]
                counts[table] = counts.get(table, -1) + 1
                yield line, (table, counts[table], None)
            else:
                # A table inside another is a key of it.
                table = ".".join(parts)
                outer = ".".join(parts[:-1])
                yield line, (parts[0], counts.get(parts[0], 0), parts[1])
                yield line, (outer, counts.get(outer, 0), parts[-1])
                counts[table] = 0 if header[2] in _BY_NAME else counts.get(parts[0], 0)
                yield line, (table, counts[table], None)
        elif key := _KEY.match(content):
            yield line, (table, counts[table], key[1])
