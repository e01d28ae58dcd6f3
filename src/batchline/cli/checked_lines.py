"""The lines of files for `batchline check`: as they are, or made from rows. None is longer than the limit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from batchline.cli.display.console import CommandError
from batchline.cli.manifest import Manifest, ManifestFile
from batchline.files.inputs.detection import detect
from batchline.files.inputs.errors import InputRefused, StreamFault
from batchline.files.inputs.formats import Format, InputFile, InputLimits, compression_of
from batchline.files.inputs.rows import numbered_rows
from batchline.files.inputs.streams import open_bytes
from batchline.tables.formats import UnknownFormat, format_of_name
from batchline.tables.reconciling import LineFile, LinesDamaged

_LIMITS = InputLimits()


@dataclass(frozen=True, slots=True)
class _Lines:
    file: InputFile

    def __iter__(self) -> Iterator[bytes]:
        limit = _LIMITS.max_line_bytes
        try:
            with open_bytes(self.file, _LIMITS) as stream:
                while line := stream.readline(limit + 1):
                    if len(line) > limit:
                        raise LinesDamaged(self.file.name, f"a line is longer than {limit:,} bytes")
                    yield line
        except StreamFault as fault:
            raise LinesDamaged(self.file.name, str(fault)) from fault


@dataclass(frozen=True, slots=True)
class RequestLines:
    """The requests of all inputs, in order. A row becomes a line with its custom_id."""

    files: tuple[InputFile, ...]
    id_column: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        before = 0
        for file in self.files:
            count = 0
            for line in self._lines(file, before):
                count += 1
                yield line
            before += count

    def _lines(self, file: InputFile, before: int) -> Iterator[bytes]:
        if file.is_envelope:
            yield from _Lines(file)
            return
        try:
            for number, row in numbered_rows(file, _LIMITS):
                name = f"row-{before + number}" if self.id_column is None else (row or {}).get(self.id_column)
                yield b"\n" if row is None else msgspec.json.encode({"custom_id": str(name)})
        except InputRefused as error:
            raise LinesDamaged(error.name, error.message) from error


def request_lines(paths: tuple[Path, ...], manifest: Manifest | None) -> RequestLines | None:
    """The requests of the inputs; None if they have rows, and no manifest says how these became requests."""
    rows = None if manifest is None else manifest.settings.get("rows")
    entries = {} if manifest is None else {Path(entry.name).name: entry for entry in manifest.inputs}
    try:
        found = tuple(_detected(path, entries.get(path.name), rows is not None) for path in paths)
    except InputRefused as error:
        raise CommandError(str(error)) from error
    if all(file.is_envelope for file in found):
        return RequestLines(found)
    return RequestLines(found, rows.get("id_column")) if isinstance(rows, dict) else None


def _detected(path: Path, entry: ManifestFile | None, rows_expected: bool) -> InputFile:
    if entry is None or entry.format is None:
        return detect(path.name, path, _LIMITS, rows_expected=rows_expected)
    format = Format(entry.format)
    return detect(
        path.name, path, _LIMITS, requested=format, delimiter=entry.delimiter, rows_expected=rows_expected
    )


def answer_lines(path: Path) -> LineFile | None:
    """The lines of an output or error file; None if it is a table."""
    try:
        kind = format_of_name(path.name).kind
    except UnknownFormat as error:
        raise CommandError(f"check reads JSON Lines: {error}") from error
    if kind != "jsonl":
        return None
    # Fails now if the file is not there.
    path.stat()
    file = InputFile(path.name, str(path), Format.JSONL, compression_of(path.name), is_envelope=True)
    return LineFile(path.name, _Lines(file))
