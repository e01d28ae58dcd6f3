"""`batchline adopt`: moves a live database with one row per request to Batchline, and back."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from batchline.adopt import phases, verification
from batchline.cli import options
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.options import Exit
from batchline.cli.runtime import open_runtime, run_async
from batchline.config import durations
from batchline.model import DEFAULT_TENANT, ids
from batchline.store.adoption import cutover as cutovers
from batchline.store.adoption import transactions
from batchline.store.adoption.records import Adoption, AdoptionRefused, CutoverSettings, LeftOut, PossiblySent
from batchline.store.session import Session
from batchline.upstreams import urls

commands = typer.Typer(
    help="Move a live database with one row per request to Batchline, and back.", no_args_is_help=True
)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done and how long it takes.")]
T = TypeVar("T")
# Lines of a list for people; --json has all of them.
_MAX_LISTED = 20


def register(app: typer.Typer) -> None:
    app.add_typer(commands, name="adopt", rich_help_panel=options.PANEL_SET_UP)


@commands.command("prepare")
def prepare(
    source: Annotated[
        str, typer.Option("--source", metavar="SCHEMA", help="The schema of the old tables.")
    ] = "public",
    dry_run: DryRun = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Copy files, lines and finished requests, while the old programs go on working."""
    act = phases.plan_prepare if dry_run else phases.prepare
    done = _run(database, data_dir, as_json, lambda session: act(session, source))
    if as_json:
        print_json(done)
        return
    size, verb = done.size, "would copy" if dry_run else "copied"
    _say(f"schema {source}, shape {done.shape}: {_batches(size.batches)} over {counted(size.files, 'file')}")
    _say(
        f"requests: {size.pending:,} pending, {size.in_flight:,} in flight, {size.completed:,} completed,"
        f" {size.failed:,} failed, {size.canceled:,} canceled"
    )
    copied = f"{counted(done.lines, 'line')} and {counted(done.results, 'result')}"
    _say(f"{verb} {copied} {_took(done.seconds, dry_run)}")
    if not dry_run:
        _say("next: stop the old daemons, then `batchline adopt cutover`")


@commands.command("cutover")
def cutover(
    upstream: Annotated[
        str | None,
        typer.Option(
            "--upstream", metavar="URL", help="Where adopted lines are sent. Default: routed by their model."
        ),
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant of what is adopted.")] = DEFAULT_TENANT,
    by_owner: Annotated[
        bool, typer.Option("--by-owner", help="One tenant per owner of the old batches and files.")
    ] = False,
    grace: Annotated[
        str, typer.Option("--grace", help="Unfinished batches expire after this time at the earliest.")
    ] = "24h",
    daemons_stopped: Annotated[
        bool,
        typer.Option("--daemons-stopped", help="The old daemons are stopped, although claims are recent."),
    ] = False,
    leave_unadopted: Annotated[
        bool,
        typer.Option("--leave-unadopted", help="Leave unfinished requests that cannot be adopted."),
    ] = False,
    dry_run: DryRun = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Adopt the database, in a short maintenance window. The old tables become read-only."""
    with reported_errors(as_json), _bad_options():
        settings = CutoverSettings(tenant, by_owner, _checked(upstream), durations.seconds(grace))
    done = _run(
        database,
        data_dir,
        as_json,
        lambda session: phases.cut_over(
            session,
            settings,
            daemons_stopped=daemons_stopped,
            leave_unadopted=leave_unadopted,
            rehearse=dry_run,
        ),
    )
    if as_json:
        print_json(done)
        return
    verb, lock = ("would adopt", "would be") if dry_run else ("adopted", "were")
    _say(f"{verb} {_batches(done.batches)}, {done.unfinished_batches:,} of them unfinished")
    _say(
        f"left to copy: {counted(done.results, 'result')}; old tables {lock} locked for {done.seconds:.1f} s"
    )
    _tell_possibly_sent(done.possibly_sent)
    _tell_left_out(done.left_out)
    if not dry_run:
        _say("next: `batchline adopt verify`, then start workers")


@commands.command("verify")
def verify(
    one_in: Annotated[
        int, typer.Option("--one-in", min=1, metavar="N", help="Compare one in N lines and results. 1: all.")
    ] = 1,
    dry_run: DryRun = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Compare the old tables with Batchline, and run the doctor. Exit code 1: there are findings."""
    if dry_run:
        size = _run(database, data_dir, as_json, verification.plan_verify)
        if as_json:
            print_json(size)
        else:
            _say(
                f"would compare the states of {size.requests:,} requests, one in {one_in} of"
                f" {size.templates:,} lines and of {size.completed + size.failed:,} results, and run doctor"
            )
        return
    done = _run(database, data_dir, as_json, lambda session: verification.verify(session, one_in=one_in))
    if as_json:
        print_json(done)
    else:
        for finding in done.findings:
            err().print(finding, markup=False)
        share = "all" if one_in == 1 else f"one in {one_in}"
        verdict = "clean" if done.clean else counted(len(done.findings), "finding")
        _say(
            f"{verdict}: {_batches(done.batches)}; compared {counted(done.lines, 'line')} and"
            f" {counted(done.results, 'result')} ({share}); finished since the cutover:"
            f" {counted(done.finished_since, 'item')}"
        )
    raise typer.Exit(Exit.OK if done.clean else Exit.SOME_FAILED)


@commands.command("rollback")
def rollback(
    leave_new: Annotated[
        bool,
        typer.Option("--leave-new", help="Leave batches created since the cutover in Batchline."),
    ] = False,
    dry_run: DryRun = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Give the work back to the old tables, with what has finished meanwhile. Stop the workers first."""
    done = _run(
        database,
        data_dir,
        as_json,
        phases.plan_rollback if dry_run else lambda session: phases.roll_back(session, leave_own=leave_new),
    )
    if as_json:
        print_json(done)
        return
    verb = "would write back" if dry_run else "wrote back"
    _say(
        f"{verb} {counted(done.results, 'result')} of {_batches(done.batches)};"
        f" {counted(done.pending, 'request')} pending again or canceled {_took(done.seconds, dry_run)}"
    )
    for batch_id in done.own_batches:
        _say(f"{ids.show(ids.BATCH, batch_id)} was created since the cutover, and stays in Batchline")
    _tell_possibly_sent(done.possibly_sent)
    if not dry_run:
        _say("the old tables can be written again; the old daemons can start")


@commands.command("finish")
def finish(
    drop: Annotated[bool, typer.Option("--drop", help="Drop the old tables.")] = False,
    lose_unadopted: Annotated[
        bool, typer.Option("--lose-unadopted", help="Drop them although some rows were not adopted.")
    ] = False,
    dry_run: DryRun = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """End the adoption: after this there is no way back. Before a cutover: delete what was copied."""
    done = _run(
        database,
        data_dir,
        as_json,
        lambda session: phases.finish(session, drop=drop, lose_unadopted=lose_unadopted, dry_run=dry_run),
    )
    if as_json:
        print_json(done)
        return
    would = "would be " if dry_run else "is "
    if done.abandoned:
        _say(f"the adoption {would}abandoned: what was copied {would}deleted; the old tables are unchanged")
    else:
        _say(f"the adoption {would}finished: there is no way back")
        _tell_left_out(done.left_out)
        if done.dropped:
            _say(f"{'would drop' if dry_run else 'dropped'} {', '.join(done.dropped)}")


@commands.command("status")
def status(
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show the phase of the adoption, and the requests that may have been sent twice."""
    state, sent = _run(database, data_dir, as_json, _read_status)
    if as_json:
        print_json({"adoption": state, "possibly_sent": sent})
    elif state is None:
        _say("no adoption has begun")
    else:
        _say(f"phase {state.phase}: schema {state.source}, shape {state.shape}")
        _tell_possibly_sent(sent)


async def _read_status(session: Session) -> tuple[Adoption | None, list[PossiblySent]]:
    state = await transactions.find(session)
    async with transactions.step(session, rolled_back=True) as connection:
        return state, await cutovers.possibly_sent(connection)


def _run(
    database: str | None,
    data_dir: Path | None,
    as_json: bool,
    act: Callable[[Session], Coroutine[Any, Any, T]],
) -> T:
    async def in_session(url: str) -> T:
        async with Session(url, "adopt") as session:
            return await act(session)

    with reported_errors(as_json), open_runtime(database, data_dir, to_work=True) as runtime:
        try:
            return run_async(in_session(runtime.url))
        except AdoptionRefused as error:
            raise CommandError(str(error), Exit.BAD_INPUT, error.details) from error


@contextmanager
def _bad_options() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from error


def _checked(upstream: str | None) -> str | None:
    if upstream is not None:
        urls.parse(upstream)
    return upstream


def _batches(number: int) -> str:
    return counted(number, "batch", "batches")


def _tell_possibly_sent(items: Sequence[PossiblySent]) -> None:
    if not items:
        _say("no request was in flight: none can run twice")
        return
    sent = sum(one.state == "processing" for one in items)
    _say(
        f"in flight: {counted(len(items), 'request')} ({sent:,} processing), which may have been sent,"
        " and run again:"
    )
    for one in items[:_MAX_LISTED]:
        _say(f"  {ids.show(ids.BATCH, one.batch_id)} line {one.line_no} {one.custom_id}: {one.state}")
    if len(items) > _MAX_LISTED:
        _say(f"  and {len(items) - _MAX_LISTED:,} more; --json lists all of them")


def _tell_left_out(left_out: Sequence[LeftOut]) -> None:
    for one in left_out[:_MAX_LISTED]:
        _say(f"not adopted: {phases.describe_left_out(one)}")
    if len(left_out) > _MAX_LISTED:
        _say(f"and {len(left_out) - _MAX_LISTED:,} more; --json lists all of them")


def _took(seconds: float, estimated: bool) -> str:
    return f"in about {seconds:.0f} s" if estimated else f"in {seconds:.1f} s"


def _say(text: str) -> None:
    out().print(text, markup=False)
