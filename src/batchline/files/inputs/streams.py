"""Opens an input file as a stream of decompressed bytes, whose number is limited."""

import gzip
import io
import sys
import zlib
from typing import IO, Any

from batchline.files.inputs.errors import StreamFault
from batchline.files.inputs.formats import Compression, InputFile, InputLimits

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_BUFFER = 128 * 1024


def open_bytes(file: InputFile, limits: InputLimits) -> io.BufferedReader:
    """Open a file for reading. Reads raise StreamFault if the content is damaged or exceeds the limit."""
    raw = io.FileIO(file.path)
    match file.compression:
        case Compression.NONE:
            return io.BufferedReader(raw, _BUFFER)
        case Compression.GZIP:
            return io.BufferedReader(_Decompressed(raw, gzip.GzipFile(fileobj=raw), file, limits), _BUFFER)
        case Compression.ZSTD:
            return io.BufferedReader(_Decompressed(raw, zstd.ZstdFile(raw), file, limits), _BUFFER)


class _Decompressed(io.RawIOBase):
    """Counts what a decompressor returns, and explains its errors."""

    def __init__(self, raw: io.RawIOBase, decompressor: Any, file: InputFile, limits: InputLimits) -> None:
        self._raw = raw
        self._decompressor: IO[bytes] = decompressor
        self._compression = file.compression
        self._max_bytes = limits.max_bytes
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._decompressor.read(len(buffer))
        except EOFError:
            raise StreamFault(
                f"the {self._compression} data ends too early, after {self._size:,} decompressed bytes;"
                " the file is truncated"
            ) from None
        except (gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
            raise StreamFault(
                f"the {self._compression} data is damaged after {self._size:,} decompressed bytes: {error}"
            ) from None
        self._size += len(piece)
        if self._size > self._max_bytes:
            raise StreamFault(
                f"it has more than {self._max_bytes:,} bytes after decompression;"
                " if that is intended, raise --max-input-size"
            )
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._decompressor.close()
            self._raw.close()
        super().close()
