"""Rows of Parquet and Arrow files, through pyarrow (the extra `tables`, docs/decisions/0018)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from batchline.files.inputs.errors import StreamFault
from batchline.files.inputs.formats import InputFile, InputLimits

# Rows are decoded in pieces of about this size.
_PIECE = 4 * 2**20
_MAX_ROWS = 2048
_STREAM_BUFFER = 2**20


def parquet_rows(file: InputFile, limits: InputLimits) -> Iterator[dict[str, Any]]:
    arrow, parquet = _pyarrow(file)
    # Without pre_buffer, only a part of a row group is in memory.
    with (
        _explained(arrow, file),
        parquet.ParquetFile(file.path, buffer_size=_STREAM_BUFFER, pre_buffer=False) as table,
    ):
        found = table.metadata
        size = sum(found.row_group(nth).total_byte_size for nth in range(found.num_row_groups))
        rows = _rows_per_piece(size, found.num_rows)
        yield from _rows(table.iter_batches(batch_size=rows, use_threads=False), limits)


def arrow_rows(file: InputFile, limits: InputLimits) -> Iterator[dict[str, Any]]:
    """Both the file format, which Feather also is, and the stream format."""
    arrow, _ = _pyarrow(file)
    with _explained(arrow, file), arrow.memory_map(file.path) as content:
        is_file = content.read(6) == b"ARROW1"
        content.seek(0)
        if is_file:
            table = arrow.ipc.open_file(content)
            yield from _rows((table.get_batch(nth) for nth in range(table.num_record_batches)), limits)
        else:
            yield from _rows(arrow.ipc.open_stream(content), limits)


def _rows(batches: Iterable[Any], limits: InputLimits) -> Iterator[dict[str, Any]]:
    size = 0
    for batch in batches:
        if (name := repeated(batch.schema.names)) is not None:
            raise StreamFault(f"it has the column {name!r} twice")
        size += batch.nbytes
        if size > limits.max_bytes:
            raise StreamFault(
                f"it has more than {limits.max_bytes:,} bytes after decompression;"
                " if that is intended, raise --max-input-size"
            )
        rows = _rows_per_piece(batch.nbytes, batch.num_rows)
        for start in range(0, batch.num_rows, rows):
            yield from batch.slice(start, rows).to_pylist()


def _rows_per_piece(size: int, rows: int) -> int:
    return max(1, min(_MAX_ROWS, _PIECE * rows // max(1, size)))


def repeated(names: Iterable[str]) -> str | None:
    """The first name that is there twice."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _pyarrow(file: InputFile) -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise StreamFault(
            f"reading {file.format.capitalize()} needs pyarrow: pip install 'batchline[tables]' ({error})"
        ) from error


@contextmanager
def _explained(arrow: Any, file: InputFile) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    # A value such as a date after the year 9999 is a ValueError or an OverflowError.
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StreamFault(f"not a valid {file.format.capitalize()} file, or damaged: {reason}") from error
