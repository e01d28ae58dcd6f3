"""`batchline retry`: runs lines of an ended batch again. Also what `run --retry-failed` needs of it."""

from typing import Annotated
from uuid import UUID

import typer

from batchline.batches.retry import BatchGone, InvalidSelection, NotRetryable, retry
from batchline.cli import options
from batchline.cli.batch_ids import batch_id_in
from batchline.cli.display.console import CommandError, out, print_json, show_batch
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.options import Exit
from batchline.cli.resuming import continued_by, how_to_continue
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.model import Batch, RetrySelection, Unfinished, ids
from batchline.store import batches
from batchline.store.session import Session

_ALL = RetrySelection()


def register(app: typer.Typer) -> None:
    app.command("retry", rich_help_panel=options.PANEL_BATCHES)(retry_lines)


def retry_lines(
    batch: options.BatchId,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="failed,expired,cancelled", help="Only lines that ended in one of these ways."
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option("--code", metavar="http_401,…", help="Only lines with one of these error codes."),
    ] = None,
    cause: Annotated[
        str | None,
        typer.Option("--cause", metavar="CAUSE,…", help="Only lines that failed for one of these causes."),
    ] = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Run the lines of an ended batch again that are not completed, in the same batch. A worker runs them.

    Exit code 0: they are put back. 1: the batch has not ended, or no line matches. 2: bad usage.
    """
    with reported_errors(as_json):
        selection = RetrySelection(_endings(only), _words("--code", code), _words("--cause", cause))
        with open_runtime(database, data_dir) as runtime:
            lines, now = run_async(_retry(runtime, batch_id_in(runtime, batch), selection))
        if as_json:
            print_json({**show_batch(now), "retried": lines, "resume": continued_by(now)})
            return
        out().print(
            f"{ids.show(ids.BATCH, now.id)}  {now.status}  {lines:,} of {counted(now.total, 'line')} run"
            f" again; {how_to_continue(now)}",
            markup=False,
        )


async def reopened(session: Session, batch: Batch, max_attempts: int) -> Batch:
    """The batch, with all lines put back that are not completed, by this process or by a faster one."""
    try:
        await _put_back(session, batch, _ALL, max_attempts)
    except NotRetryable as error:
        if not error.running:
            raise CommandError(
                f"cannot retry the batch: {error}; or give --fresh", Exit.SOME_FAILED
            ) from None
    return await _found(session, batch.id)


async def _retry(runtime: Runtime, batch_id: UUID, selection: RetrySelection) -> tuple[int, Batch]:
    async with Session(runtime.url, "retry") as session:
        found = await _found(session, batch_id)
        try:
            lines = await _put_back(session, found, selection)
        except InvalidSelection as error:
            raise CommandError(str(error)) from None
        except NotRetryable as error:
            # Nothing else than its own command may work on a batch of `run`.
            hint = f"; {how_to_continue(found)}" if error.running and found.settings.reserved else ""
            raise CommandError(f"cannot retry the batch: {error}{hint}", Exit.SOME_FAILED) from None
        return lines, await _found(session, batch_id)


async def _put_back(
    session: Session, batch: Batch, selection: RetrySelection, max_attempts: int | None = None
) -> int:
    try:
        return await retry(session, batch, selection, max_attempts=max_attempts)
    except BatchGone:
        raise CommandError(
            "cannot retry the batch: it is governed, and `batchline ops retry` does that, or it was deleted"
            " meanwhile",
            Exit.SOME_FAILED,
        ) from None


async def _found(session: Session, batch_id: UUID) -> Batch:
    batch = await batches.get(session, batch_id)
    if batch is None:
        raise CommandError(f"there is no batch {batch_id}; `batchline list` shows all")
    return batch


def _endings(text: str | None) -> frozenset[Unfinished] | None:
    words = _words("--only", text)
    if words is None:
        return None
    if unknown := [word for word in words if word not in set(Unfinished)]:
        raise CommandError(f"--only {unknown[0]!r}: give one or more of {', '.join(Unfinished)}")
    return frozenset(map(Unfinished, words))


def _words(option: str, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    words = tuple(word for word in (part.strip() for part in text.split(",")) if word)
    if not words:
        raise CommandError(f"{option} {text!r}: give at least one value")
    return words
