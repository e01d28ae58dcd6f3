"""Formats of input files, and what is known about one file."""

from enum import StrEnum
from pathlib import PurePosixPath

import msgspec


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    TEXT = "text"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def is_table(self) -> bool:
        """Whether pyarrow reads it."""
        return self in (Format.PARQUET, Format.ARROW)


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


_SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), Format.JSONL),
    ".csv": Format.CSV,
    **dict.fromkeys((".tsv", ".tab"), Format.TSV),
    **dict.fromkeys((".txt", ".text"), Format.TEXT),
    **dict.fromkeys((".parquet", ".pq"), Format.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), Format.ARROW),
}
_COMPRESSED = {".gz": Compression.GZIP, ".zst": Compression.ZSTD, ".zstd": Compression.ZSTD}


class InputFile(msgspec.Struct, frozen=True):
    """A local file to read. `name` is for people: that of a URL has neither credentials nor query."""

    name: str
    path: str
    format: Format
    compression: Compression = Compression.NONE
    delimiter: str = ","
    # Whether its lines are requests in OpenAI's format.
    is_envelope: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether its bytes are request lines as they are."""
        return self.is_envelope and self.compression is Compression.NONE


class InputLimits(msgspec.Struct, frozen=True):
    """Limits for one input. The sizes are in bytes."""

    # After decompression. Of a pipe or URL also before.
    max_bytes: int = 64 * 2**30
    max_line_bytes: int = 64 * 2**20
    # For one row: processor time of its template, and what the template may write.
    render_seconds: float = 2.0
    render_bytes: int = 16 * 2**20
    # Memory of the process that reads and renders.
    memory: int = 2**30


def format_of(name: str) -> Format | None:
    """The format that a name ends in, before the suffix of a compression."""
    return _SUFFIXES.get(_uncompressed(name).suffix.lower())


def compression_of(name: str) -> Compression:
    return _COMPRESSED.get(PurePosixPath(name).suffix.lower(), Compression.NONE)


def stem(name: str) -> str:
    """The name without the suffixes of its format and compression."""
    path = _uncompressed(name)
    return str(path.with_suffix("")) if path.suffix.lower() in _SUFFIXES else str(path)


def _uncompressed(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    return path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
