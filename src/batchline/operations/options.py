"""How an operation runs: attempts, time limit, concurrency, where, and which stages follow."""

import math
import os
from typing import Any

import msgspec

from batchline.model import MAX_CONCURRENCY
from batchline.model.sink import SinkTable
from batchline.operations.errors import InvalidApp

LOOP, THREAD, PROCESS = "loop", "thread", "process"
_RUN_IN = (LOOP, THREAD, PROCESS)
BY_BATCH, BY_KEY = "batch", "key"
_MAX_ATTEMPTS = 100
_MAX_CHUNK = 10_000
# Items in flight of an operation with chunks, unless it says more.
_MAX_DEFAULT = 10_000


class OperationOptions(msgspec.Struct, frozen=True):
    """The keywords of an operation, checked. `concurrency` counts items, also if they run in chunks."""

    max_attempts: int = 5
    timeout: float | None = 600.0
    concurrency: int = 100
    run_in: str = LOOP
    chunk: int | None = None
    # Names of the stages that `ctx.emit` may name.
    emits: tuple[str, ...] = ()
    # The shortest and the longest ceiling of the random delay after a failed attempt, in seconds.
    backoff: tuple[float, float] = (0.5, 60.0)
    # The stage whose results it collects when everything else has ended: all at once, or key by key.
    collects: str | None = None
    by_key: bool = False
    # A table of the user's that gets the results.
    sink: SinkTable | None = None
    keep_results: bool = True

    @property
    def calls(self) -> int:
        """How many calls of the function run at once: the number of threads or processes."""
        return self.concurrency // (self.chunk or 1)


def checked_options(
    *,
    max_attempts: int,
    timeout: float | None,
    concurrency: int | None,
    run_in: str,
    chunk: int | None,
    emits: tuple[str, ...],
    backoff: tuple[float, float],
    collects: str | None = None,
    by: str = BY_BATCH,
    sink: str | None = None,
    keep_results: bool = True,
) -> OperationOptions:
    """The options of an operation. Raises InvalidApp."""
    if run_in not in _RUN_IN:
        raise InvalidApp(f'run_in must be "loop", "thread" or "process", not {run_in!r}')
    if chunk is not None:
        _check_count("chunk", chunk, _MAX_CHUNK)
    _check_count("max_attempts", max_attempts, _MAX_ATTEMPTS)
    if timeout is not None and not (_is_number(timeout) and timeout > 0):
        raise InvalidApp(f"timeout must be a number of seconds above 0, or None, not {timeout!r}")
    if concurrency is None:
        concurrency = _default_concurrency(run_in, chunk or 1)
    _check_count("concurrency", concurrency, MAX_CONCURRENCY)
    if chunk is not None and concurrency < chunk:
        raise InvalidApp(
            f"concurrency counts items, so it must be at least chunk: {concurrency} is less than {chunk}"
        )
    if by not in (BY_BATCH, BY_KEY):
        raise InvalidApp(f'by must be "batch" or "key", not {by!r}')
    if by == BY_KEY and collects is None:
        raise InvalidApp('by="key" is for an operation that collects: add collects=…')
    return OperationOptions(
        max_attempts,
        None if timeout is None else float(timeout),
        concurrency,
        run_in,
        chunk,
        emits,
        _checked_backoff(backoff),
        collects,
        by == BY_KEY,
        None if sink is None else _checked_sink(sink),
        bool(keep_results),
    )


def _checked_sink(sink: Any) -> SinkTable:
    if not isinstance(sink, str) or not all(part and "\0" not in part for part in sink.split(".")):
        raise InvalidApp(f'sink must be a table, such as "thumbs" or "app.thumbs", not {sink!r}')
    if sink.count(".") > 1:
        raise InvalidApp(f"sink must be a table, with its schema or without, not {sink!r}")
    return SinkTable.named(sink)


def _default_concurrency(run_in: str, chunk: int) -> int:
    calls = {LOOP: 100, THREAD: 16, PROCESS: os.cpu_count() or 1}[run_in]
    return calls if chunk == 1 else min(calls * chunk, max(chunk, _MAX_DEFAULT))


def _checked_backoff(backoff: Any) -> tuple[float, float]:
    match backoff:
        case (minimum, maximum) if _is_number(minimum) and _is_number(maximum) and 0 <= minimum <= maximum:
            return float(minimum), float(maximum)
    raise InvalidApp(f"backoff must be two numbers of seconds, the smaller one first, not {backoff!r}")


def _check_count(name: str, value: Any, maximum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise InvalidApp(f"{name} must be a whole number from 1 to {maximum}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
