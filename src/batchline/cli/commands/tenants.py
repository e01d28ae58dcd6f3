"""`batchline tenants`: quotas, usage and erasure of tenants."""

import asyncio
import sys
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from batchline.batches import erasure
from batchline.batches.erasure import ErasureProgress
from batchline.cli import options
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.display.money import money
from batchline.cli.display.tables import print_table
from batchline.cli.display.units import size
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import Reason, User, current_actor, refusing
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.server_settings import read_settings
from batchline.config import kinds
from batchline.governance import tenants
from batchline.governance.access import Actor
from batchline.governance.tenants import UsageReport
from batchline.model import DEFAULT_TENANT, Role, TenantUsage
from batchline.model.spending import dollars
from batchline.store import tenants as store_tenants
from batchline.store.session import Session
from batchline.store.tenants import ErasureLeft, Tenant, UsageQuery

_tenants = typer.Typer(help="Tenants: list, quota, usage, erase.", no_args_is_help=True)

_NO_QUOTA = "none"
_MAX_ROWS = 10_000
# Seconds between two looks at an erasure that waits.
_PAUSE = 1.0

Name = Annotated[str, typer.Argument(metavar="TENANT", help="The name of the tenant.")]


class By(StrEnum):
    DAY = "day"
    MONTH = "month"
    TOTAL = "total"


def register(app: typer.Typer) -> None:
    app.add_typer(_tenants, name="tenants", rich_help_panel=options.PANEL_SET_UP)


@_tenants.command("list")
def list_tenants(
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List tenants with the bytes that they store and their quotas, also erased ones."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        found = run_async(_list(runtime))
        if as_json:
            print_json({"data": [_displayed(each) for each in found]})
            return
        print_table(
            out(),
            ("tenant", "status", "stored", "quota"),
            [
                (
                    each.name,
                    _status(each),
                    size(each.stored),
                    "" if each.max_bytes is None else size(each.max_bytes),
                )
                for each in found
            ],
            cut=("tenant",),
            right=("stored", "quota"),
        )


@_tenants.command("quota")
def set_quota(
    name: Name,
    quota: Annotated[
        str, typer.Argument(metavar="SIZE", help="Bytes of files that it may store: 200MB, 8GiB, none.")
    ],
    reason: Reason = None,
    user: User = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Limit the bytes of files that a tenant may store. Nothing that is stored is deleted.

    Examples:

        batchline tenants quota acme 50GB
        batchline tenants quota acme none
    """
    with reported_errors(as_json):
        max_bytes = _size(quota)
        with open_runtime(database, data_dir) as runtime:
            changed = run_async(_set_quota(runtime, _operator(user), name, max_bytes, reason))
        if as_json:
            print_json(_displayed(changed))
            return
        allowed = "any number of bytes" if max_bytes is None else size(max_bytes)
        out().print(f"{name} may store {allowed}, and stores {size(changed.stored)}", markup=False)


@_tenants.command("usage")
def usage(
    tenant: options.OnlyTenant = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", formats=["%Y-%m-%d"], metavar="DAY", help="The first day, UTC. Default: 30 days ago."
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            "--until",
            formats=["%Y-%m-%d"],
            metavar="DAY",
            help="The first day after the last. Default: tomorrow.",
        ),
    ] = None,
    by: Annotated[By, typer.Option("--by", help="The length of a period.")] = By.TOTAL,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show what tenants have used: lines, failures, tokens, cost and bytes.

    A batch counts on the day on which it ends. What running batches have used so far is shown apart.

    Examples:

        batchline tenants usage --since 2026-10-01 --until 2026-11-01
        batchline tenants usage --tenant acme --by day --json
    """
    with reported_errors(as_json):
        first, last = tenants.usage_period(
            None if since is None else since.date(), None if until is None else until.date()
        )
        if first >= last:
            raise CommandError(f"--since {first} is not before --until {last}")
        with open_runtime(database, data_dir) as runtime:
            report = run_async(_report(runtime, UsageQuery(tenant, first, last, by.value, None, _MAX_ROWS)))
        if as_json:
            print_json(
                {
                    "since": first.isoformat(),
                    "until": last.isoformat(),
                    "by": by.value,
                    "data": [_used(each) for each in report.rows],
                    "running": [_used(each) for each in report.running],
                }
            )
            return
        _tell(report, by)


@_tenants.command("erase")
def erase(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Delete here and wait, or leave it to workers.")
    ] = True,
    reason: Reason = None,
    user: User = None,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    objects: options.ObjectsUrl = None,
    as_json: options.Json = False,
) -> None:
    """Erase a tenant with everything that belongs to it. It cannot be undone.

    Its keys stop working at once, its batches are cancelled, and nothing new is accepted. Then its files,
    lines, batches, results, keys, webhooks and limits are deleted, in small steps. If this command is
    interrupted, workers continue, or the same command does. Only the audit log keeps its entries.

    Examples:

        batchline tenants erase acme --reason "contract ended"
    """
    with reported_errors(as_json):
        located = read_settings({"config": config, "objects": objects}).server.objects
        with open_runtime(database, data_dir, objects=located) as runtime:
            if not yes:
                _confirm(name)
            begun = run_async(_begin(runtime, _operator(user), name, reason))
            if wait:
                begun = run_async(_erase(runtime, name))
        if as_json:
            print_json(_displayed(begun))
            return
        done = f"erased {name}" if wait else f"erasing {name}; `batchline tenants list` shows when it is done"
        out().print(done, markup=False)


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise CommandError(f"erasing {name} cannot be undone; repeat the command with --yes")
    if typer.prompt(f"This deletes everything of {name}. Type its name to go on", err=True) != name:
        raise CommandError("nothing was erased: that is another name")


def _operator(user: str | None) -> Actor:
    """Access to the database is full access."""
    return Actor(DEFAULT_TENANT, current_actor(user), Role.OPERATOR)


async def _list(runtime: Runtime) -> list[Tenant]:
    found: list[Tenant] = []
    async with Session(runtime.url, "tenants") as session:
        while page := await store_tenants.page(session, after=found[-1].name if found else ""):
            found += page
    return found


async def _set_quota(
    runtime: Runtime, actor: Actor, name: str, max_bytes: int | None, reason: str | None
) -> Tenant:
    async with Session(runtime.url, "tenants") as session:
        with refusing():
            return await tenants.set_quota(session, actor, name, max_bytes, reason=reason)


async def _report(runtime: Runtime, query: UsageQuery) -> UsageReport:
    async with Session(runtime.url, "usage") as session:
        report = await tenants.report(session, _operator(None), query)
        rows, last = list(report.rows), report
        while last.has_more:
            assert rows[-1].period is not None
            query = msgspec.structs.replace(query, after=(rows[-1].period, rows[-1].tenant))
            last = await tenants.report(session, _operator(None), query)
            rows += last.rows
    return UsageReport(rows, report.running, False)


async def _begin(runtime: Runtime, actor: Actor, name: str, reason: str | None) -> Tenant:
    async with Session(runtime.url, "erasure") as session:
        with refusing():
            return await tenants.begin_erasure(session, actor, name, reason=reason)


async def _erase(runtime: Runtime, name: str) -> Tenant:
    """Delete until nothing is left, and say what is waited for."""
    waits_for: ErasureLeft | None = None
    async with Session(runtime.url, "erasure") as session:
        while (progress := await erasure.erase(session, runtime.objects, name)) is not ErasureProgress.DONE:
            found = await tenants.get(session, name)
            if found.erasing_at is None:
                # A worker was faster.
                break
            if progress is ErasureProgress.WAITING:
                left = await store_tenants.left(session, name)
                if left != waits_for:
                    err().print(_waiting(left), markup=False)
                waits_for = left
                await asyncio.sleep(_PAUSE)
        return await tenants.get(session, name)


def _waiting(left: ErasureLeft) -> str:
    if left.tasks:
        return (
            f"waiting: {left.tasks:,} tasks are to be cancelled at their providers;"
            " a worker that serves these providers does it"
        )
    return f"waiting: requests of {left.batches:,} batches are in flight, or their files are being written"


def _size(text: str) -> int | None:
    if text in (_NO_QUOTA, "0"):
        return None if text == _NO_QUOTA else 0
    kind = kinds.size()
    try:
        parsed: int = kind.read(kind.from_text(text))
    except ValueError as error:
        raise CommandError(f"SIZE {error}, or {_NO_QUOTA}") from error
    return parsed


def _status(tenant: Tenant) -> str:
    return "erasing" if tenant.erasing_at else "erased" if tenant.erased_at else "active"


def _displayed(tenant: Tenant) -> dict[str, Any]:
    return {
        "name": tenant.name,
        "status": _status(tenant),
        "bytes_stored": tenant.stored,
        "max_bytes": tenant.max_bytes,
        "erasing_by": tenant.erasing_by,
        "erased_at": None if tenant.erased_at is None else int(tenant.erased_at.timestamp()),
    }


def _used(used: TenantUsage) -> dict[str, Any]:
    """With the field names of the API."""
    return {
        "tenant": used.tenant,
        "period": None if used.period is None else used.period.isoformat(),
        "batches": used.batches,
        "lines": used.lines,
        "failed": used.failed,
        "reused": used.reused,
        "tokens": {
            "input": used.input_tokens,
            "cached": used.cached_tokens,
            "output": used.output_tokens,
            "reasoning": used.reasoning_tokens,
        },
        "cost_usd": dollars(used.cost),
        "bytes_added": used.added,
        "bytes_stored": None if used.period is None else used.stored,
    }


def _tell(report: UsageReport, by: By) -> None:
    print_table(
        out(),
        (
            "period",
            "tenant",
            "batches",
            "lines",
            "failed",
            "tokens in",
            "tokens out",
            "cost",
            "added",
            "stored",
        ),
        [_row(each, by) for each in (*report.rows, *report.running)],
        cut=("tenant",),
        right=("batches", "lines", "failed", "tokens in", "tokens out", "cost", "added", "stored"),
    )


def _row(used: TenantUsage, by: By) -> tuple[str, ...]:
    return (
        "running" if used.period is None else _period(used.period, by),
        used.tenant,
        f"{used.batches:,}",
        f"{used.lines:,}",
        f"{used.failed:,}",
        f"{used.input_tokens:,}",
        f"{used.output_tokens:,}",
        money(used.cost),
        "" if used.period is None else size(used.added),
        "" if used.period is None else size(used.stored),
    )


def _period(first: date, by: By) -> str:
    match by:
        case By.DAY:
            return first.isoformat()
        case By.MONTH:
            return f"{first:%Y-%m}"
        case By.TOTAL:
            return f"since {first}"
