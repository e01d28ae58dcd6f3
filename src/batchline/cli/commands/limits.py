"""`batchline limits`: pending work per user, exemptions and limits of single users."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Column, Table

from batchline.cli import options
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import OpsSource, Tenant, User, admin, refusing
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.config import durations
from batchline.config.settings import LimitSettings
from batchline.governance import limit_changes, limits
from batchline.governance.access import Actor
from batchline.governance.limits import GlobalLevels, Level, UserLevels
from batchline.model import DEFAULT_TENANT
from batchline.store.limits import Exemption, Override
from batchline.store.session import Session

_limits = typer.Typer(help="Limits on operations: status, exempt, set.", no_args_is_help=True)

Subject = Annotated[str, typer.Argument(metavar="USER", help="The name of a key.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")]


def register(app: typer.Typer) -> None:
    app.add_typer(_limits, name="limits", rich_help_panel=options.PANEL_OPERATIONS)


@_limits.command("status")
def status(
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show pending work and limits, of each user and of all users together."""
    with reported_errors(as_json):
        allowed = OpsSource(config).rules().limits
        with open_runtime(database, data_dir) as runtime:
            overall, users = run_async(_status(runtime, tenant, allowed))
        if as_json:
            print_json({"global": msgspec.to_builtins(overall), "users": msgspec.to_builtins(users)})
            return
        out().print(
            f"all users: {_level(overall.pending_parents)} batches pending,"
            f" {_level(overall.reads_per_minute)} reads and"
            f" {_level(overall.writes_per_minute)} writes this minute"
        )
        table = Table(
            Column("user", no_wrap=True), "batches", "children", "cooldown", "exempt until", box=None
        )
        for user in users:
            table.add_row(
                user.user_id,
                _level(user.pending_parents),
                _level(user.pending_children),
                f"{user.cooldown_left} of {user.cooldown_seconds} s",
                user.exempt_until.isoformat() if user.exempt_until else "",
            )
        out().print(table, markup=False)


async def _status(
    runtime: Runtime, tenant: str, allowed: LimitSettings
) -> tuple[GlobalLevels, list[UserLevels]]:
    async with Session(runtime.url, "limits") as session:
        return await limits.levels(session, tenant, allowed)


def _level(level: Level) -> str:
    return f"{level.current_value} of {level.max_value}"


@_limits.command("exempt")
def exempt(
    user: Subject,
    reason: Why,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 2h, 90m, 7d.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="MOMENT", help="Until when: 2026-01-31T12:00:00Z.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="End the exemption now.")] = False,
    actor: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Lift the limits of one user for a time. The global limits still apply."""
    with reported_errors(as_json):
        if remove + (lasting is not None) + (until is not None) != 1:
            raise CommandError("give exactly one of --for, --until and --remove")
        who = admin(tenant, actor)
        if remove:
            with open_runtime(database, data_dir) as runtime:
                run_async(_remove(runtime, who, user, reason))
            _reported(f"{user} is no longer exempt", {"user_id": user, "exempt": False}, as_json)
            return
        moment = _moment(lasting, until)
        with open_runtime(database, data_dir) as runtime:
            made = run_async(_exempt(runtime, who, user, reason, moment))
        displayed = {
            "user_id": made.user_id,
            "reason": made.reason,
            "expires_at": made.expires_at.isoformat(),
            "exempted_by": made.exempted_by,
        }
        _reported(f"{user} is exempt until {made.expires_at:%Y-%m-%d %H:%M:%S %Z}", displayed, as_json)


async def _exempt(runtime: Runtime, actor: Actor, user: str, reason: str, until: datetime) -> Exemption:
    async with Session(runtime.url, "limits") as session:
        with refusing():
            return await limit_changes.exempt(session, actor, user, reason=reason, expires_at=until)


async def _remove(runtime: Runtime, actor: Actor, user: str, reason: str) -> None:
    async with Session(runtime.url, "limits") as session:
        with refusing():
            await limit_changes.drop_exemption(session, actor, user, reason=reason)


@_limits.command("set")
def set_limits(
    user: Subject,
    reason: Why,
    parents: Annotated[int, typer.Option("--parents", min=1, metavar="N", help="Batches pending at once.")],
    children: Annotated[
        int, typer.Option("--children", min=1, metavar="N", help="Children pending at once.")
    ],
    cooldown: Annotated[
        int, typer.Option("--cooldown", min=0, metavar="S", help="Seconds from one submission to the next.")
    ],
    actor: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Give one user other limits than those in the settings."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        made = run_async(_set(runtime, admin(tenant, actor), user, reason, parents, children, cooldown))
        displayed = {
            "user_id": made.user_id,
            "max_pending_parents": made.max_pending_parents,
            "max_pending_children": made.max_pending_children,
            "cooldown_seconds": made.cooldown_seconds,
            "reason": made.reason,
            "set_by": made.set_by,
        }
        allowed = f"{counted(parents, 'batch', 'batches')} and {counted(children, 'child', 'children')}"
        _reported(f"{user} may have {allowed} pending", displayed, as_json)


async def _set(
    runtime: Runtime, actor: Actor, user: str, reason: str, parents: int, children: int, cooldown: int
) -> Override:
    async with Session(runtime.url, "limits") as session:
        return await limit_changes.set_limits(
            session,
            actor,
            user,
            parents=parents,
            children=children,
            cooldown=cooldown,
            reason=reason,
        )


def _moment(lasting: str | None, until: str | None) -> datetime:
    try:
        if lasting is not None:
            return datetime.now(UTC) + timedelta(seconds=durations.seconds(lasting))
        moment = datetime.fromisoformat(until or "")
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if moment <= datetime.now(UTC):
            raise ValueError(f"{until} is in the past")
        return moment
    except ValueError as error:
        raise CommandError(f"{'--for' if lasting else '--until'}: {error}") from None


def _reported(words: str, displayed: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(displayed)
    else:
        out().print(words, markup=False)
