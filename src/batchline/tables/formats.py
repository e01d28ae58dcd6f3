"""The format of an output file, from its name or from `--format`, and its compression."""

import sys
import zlib
from typing import Any, Literal, Protocol

import msgspec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Kind = Literal["jsonl", "csv", "parquet"]
Compression = Literal["gz", "zst"]

_KINDS: dict[str, Kind] = {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "parquet": "parquet"}
_COMPRESSIONS: dict[str, Compression] = {"gz": "gz", "zst": "zst"}
# Formats that Batchline does not write. Any other suffix is part of the name.
_OTHERS = {
    *("tsv", "json", "arrow", "feather", "ipc", "orc", "avro", "xls", "xlsx", "xml", "yaml", "yml", "toml"),
    *("db", "sqlite", "tgz", "bz2", "xz", "lz4", "br", "7z", "tar", "zip"),
}
_EXAMPLES = ".jsonl, .csv or .parquet, the first two also with .gz or .zst"


class UnknownFormat(ValueError):
    """Batchline does not write this format."""


class OutputFormat(msgspec.Struct, frozen=True):
    kind: Kind = "jsonl"
    compression: Compression | None = None

    def __str__(self) -> str:
        return self.kind if self.compression is None else f"{self.kind}.{self.compression}"


def format_of_name(name: str) -> OutputFormat:
    """The format of a file by its suffixes. A name with other suffixes, or none, has JSON Lines."""
    words = name.lower().split(".")[1:]
    compression = _COMPRESSIONS.get(words.pop()) if words and words[-1] in _COMPRESSIONS else None
    last = words[-1] if words else ""
    if last in _OTHERS:
        raise UnknownFormat(
            f"{name}: Batchline does not write .{last}; give a name that ends in {_EXAMPLES}, "
            "or write JSON Lines to - and convert them"
        )
    return _checked(OutputFormat(_KINDS.get(last, "jsonl"), compression))


def read_format(text: str) -> OutputFormat:
    """The format that `--format` names: `csv`, `jsonl.gz`."""
    kind, _, compression = text.lower().partition(".")
    if kind not in _KINDS or (compression and compression not in _COMPRESSIONS):
        raise UnknownFormat(
            f"--format {text}: give jsonl, csv or parquet, the first two also as csv.gz or csv.zst"
        )
    return _checked(OutputFormat(_KINDS[kind], _COMPRESSIONS.get(compression)))


def _checked(found: OutputFormat) -> OutputFormat:
    if found.kind == "parquet" and found.compression is not None:
        raise UnknownFormat("Parquet files are compressed inside; leave out the suffix of the compression")
    return found


class Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Unchanged:
    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def compressor(compression: Compression | None) -> Compressor:
    """Compresses block by block. The same lines always make the same bytes."""
    match compression:
        case None:
            return _Unchanged()
        case "gz":
            # 31: with a gzip header, which zlib writes without a time.
            return zlib.compressobj(wbits=31)
        case "zst":
            stream: Any = zstd.ZstdCompressor()
            return stream  # type: ignore[no-any-return]
