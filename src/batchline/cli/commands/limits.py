"""`batchline limits`: who has how much pending, and who may have more."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from batchline.cli import options
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import Tenant, User, admin, governor
from batchline.cli.options import Exit
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.config import durations
from batchline.config.settings import LimitSettings
from batchline.governance.access import Actor
from batchline.model import DEFAULT_TENANT
from batchline.secrets.masking import masked_text
from batchline.store import limits
from batchline.store.audit import AuditEvent
from batchline.store.limits import Exemption, Measured, Override
from batchline.store.session import Session

_limits = typer.Typer(help="Limits on operations: status, exempt, set.", no_args_is_help=True)

Subject = Annotated[str, typer.Argument(metavar="USER", help="The name of a key.")]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")]


def register(app: typer.Typer) -> None:
    app.add_typer(_limits, name="limits")


@_limits.command("status")
def status(
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Show what is pending, of all and of each user, and what is allowed."""
    with reported_errors(as_json):
        allowed = governor(config)[1].limits
        with open_runtime(database, data_dir) as runtime:
            found = run_async(_status(runtime, tenant, allowed))
        if as_json:
            print_json(found)
            return
        everybody = found["global"]
        out().print(
            f"of all: {_level(everybody['pending_parents'])} batches pending,"
            f" {_level(everybody['reads_per_minute'])} reads and"
            f" {_level(everybody['writes_per_minute'])} writes this minute"
        )
        table = Table(
            Column("user", no_wrap=True), "batches", "children", "cooldown", "exempt until", box=None
        )
        for user in found["users"]:
            table.add_row(
                user["user_id"],
                _level(user["pending_parents"]),
                _level(user["pending_children"]),
                f"{user['cooldown_left']} of {user['cooldown_seconds']} s",
                user["exempt_until"] or "",
            )
        out().print(table, markup=False)


async def _status(runtime: Runtime, tenant: str, allowed: LimitSettings) -> dict[str, Any]:
    async with Session(runtime.url, "limits") as session:
        users = await limits.users(session, tenant)
        measured = {user: await limits.measure(session, tenant, user) for user in users}
        everybody = await limits.measure(session, tenant, "")
        exempt = {each.user_id: each for each in await limits.exemptions(session, tenant)}
        window = await limits.requests_now(session)
    return {
        "global": {
            "pending_parents": _of(everybody.all_parents, allowed.max_pending_parents),
            "reads_per_minute": _of(window.reads, allowed.requests_per_minute),
            "writes_per_minute": _of(window.writes, allowed.requests_per_minute),
        },
        "users": [_user(user, now, allowed, exempt.get(user)) for user, now in measured.items()],
    }


def _user(user: str, now: Measured, allowed: LimitSettings, exemption: Exemption | None) -> dict[str, Any]:
    cooldown = allowed.cooldown_seconds if now.cooldown is None else now.cooldown
    left = 0.0 if now.since_last is None else max(0.0, cooldown - now.since_last)
    return {
        "user_id": user,
        "pending_parents": _of(now.parents, now.max_parents or allowed.user_pending_parents),
        "pending_children": _of(now.children, now.max_children or allowed.user_pending_children),
        "cooldown_seconds": cooldown,
        "cooldown_left": round(left),
        "exempt": now.exempt,
        "exempt_until": exemption.expires_at.isoformat() if exemption and exemption.active else None,
    }


def _of(current: int, maximum: int) -> dict[str, int]:
    """As the API has it."""
    return {"current_value": current, "max_value": maximum}


def _level(displayed: dict[str, int]) -> str:
    return f"{displayed['current_value']} of {displayed['max_value']}"


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
    """Lift the limits of users for one, for a time. Those of all together hold for everybody."""
    with reported_errors(as_json):
        if remove + (lasting is not None) + (until is not None) != 1:
            raise CommandError("give one of --for, --until and --remove")
        who = admin(tenant, actor)
        if remove:
            with open_runtime(database, data_dir) as runtime:
                run_async(_remove(runtime, who, user, reason))
            _reported(f"{user} is not exempt any more", {"user_id": user, "exempt": False}, as_json)
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
    displayed = masked_text(reason)
    event = AuditEvent(
        actor.tenant,
        actor.user,
        "limits.exempted",
        subject=user,
        detail={"reason": displayed, "expires_at": until.isoformat()},
    )
    async with Session(runtime.url, "limits") as session:
        made = await limits.exempt(
            session, actor.tenant, user, reason=displayed, expires_at=until, event=event
        )
    if made is None:
        raise CommandError("that moment is past already")
    return made


async def _remove(runtime: Runtime, actor: Actor, user: str, reason: str) -> None:
    detail = {"reason": masked_text(reason)}
    event = AuditEvent(actor.tenant, actor.user, "limits.exemption_dropped", subject=user, detail=detail)
    async with Session(runtime.url, "limits") as session:
        if not await limits.drop_exemption(session, actor.tenant, user, event):
            raise CommandError(f"{user} is not exempt", Exit.SOME_FAILED)


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
    """Give one user limits of his own, instead of those of the settings."""
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
        _reported(f"{user} may have {parents} batches and {children} children pending", displayed, as_json)


async def _set(
    runtime: Runtime, actor: Actor, user: str, reason: str, parents: int, children: int, cooldown: int
) -> Override:
    displayed = masked_text(reason)
    event = AuditEvent(
        actor.tenant,
        actor.user,
        "limits.set",
        subject=user,
        detail={
            "reason": displayed,
            "max_pending_parents": parents,
            "max_pending_children": children,
            "cooldown_seconds": cooldown,
        },
    )
    async with Session(runtime.url, "limits") as session:
        return await limits.set_override(
            session,
            actor.tenant,
            user,
            parents=parents,
            children=children,
            cooldown=cooldown,
            reason=displayed,
            event=event,
        )


def _moment(lasting: str | None, until: str | None) -> datetime:
    try:
        if lasting is not None:
            return datetime.now(UTC) + timedelta(seconds=durations.seconds(lasting))
        moment = datetime.fromisoformat(until or "")
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except ValueError as error:
        raise CommandError(f"{'--for' if lasting else '--until'}: {error}") from None


def _reported(words: str, displayed: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(displayed)
    else:
        out().print(words, markup=False)
