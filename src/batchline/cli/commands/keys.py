"""`batchline keys`: creates, lists and revokes API keys of the server."""

from typing import Annotated, Any

import typer
from rich.table import Column, Table

from batchline.cli import options
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import User, current_actor
from batchline.cli.options import Exit
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.governance import keys
from batchline.governance.keys import InvalidKeyRequest
from batchline.model import DEFAULT_TENANT, ApiKey, Role, ids
from batchline.store.keys import list_all
from batchline.store.session import Session

_keys = typer.Typer(help="API keys of the server: create, list, revoke.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(_keys, name="keys", rich_help_panel=options.PANEL_SET_UP)


@_keys.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="For people: whose key it is, or what for.")],
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="T", help="Whose files and batches it opens.")
    ] = DEFAULT_TENANT,
    role: Annotated[Role, typer.Option("--role", help="What it may do.")] = Role.USER,
    user: User = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Create a key and print it. Only its hash is stored, so it cannot be shown again."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        key, secret = run_async(_create(runtime, name, tenant, role, current_actor(user)))
        if as_json:
            print_json({**_displayed(key), "key": secret})
            return
        out().print(secret, markup=False)
        err().print(
            f"{_id(key)}: role {key.role} of tenant {key.tenant}. Store it now: it cannot be shown again."
        )


async def _create(runtime: Runtime, name: str, tenant: str, role: Role, actor: str) -> tuple[ApiKey, str]:
    async with Session(runtime.url, "keys") as session:
        try:
            return await keys.create(session, name, tenant, role, actor=actor)
        except InvalidKeyRequest as error:
            raise CommandError(str(error)) from error


@_keys.command("list")
def list_keys(
    tenant: options.OnlyTenant = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """List keys, oldest first, with their first characters."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        found = run_async(_list(runtime, tenant))
        if as_json:
            print_json({"data": [_displayed(key) for key in found]})
            return
        table = Table(
            Column("id", no_wrap=True), "key", "name", "tenant", "role", "made", "revoked", box=None
        )
        for key in found:
            revoked = f"{key.revoked_at:%Y-%m-%d %H:%M:%S}" if key.revoked_at else ""
            made = f"{key.created_at:%Y-%m-%d %H:%M:%S}"
            table.add_row(_id(key), f"{key.hint}…", key.name, key.tenant, key.role.value, made, revoked)
        out().print(table)


async def _list(runtime: Runtime, tenant: str | None) -> list[ApiKey]:
    async with Session(runtime.url, "keys") as session:
        return await list_all(session, tenant)


@_keys.command("revoke")
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="A key, as `batchline keys list` shows it.")],
    user: User = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Revoke a key: it stops working at once."""
    with reported_errors(as_json), open_runtime(database, data_dir) as runtime:
        revoked = run_async(_revoke(runtime, key, current_actor(user)))
        if as_json:
            print_json(_displayed(revoked))
        else:
            out().print(f"revoked {_id(revoked)} ({revoked.name})", markup=False)


async def _revoke(runtime: Runtime, displayed: str, actor: str) -> ApiKey:
    key_id = ids.read(ids.KEY, displayed)
    async with Session(runtime.url, "keys") as session:
        revoked = None if key_id is None else await keys.revoke(session, key_id, actor)
    if revoked is None:
        raise CommandError(
            f"no active key {displayed}; `batchline keys list` shows all keys", Exit.SOME_FAILED
        )
    return revoked


def _id(key: ApiKey) -> str:
    return ids.show(ids.KEY, key.id)


def _displayed(key: ApiKey) -> dict[str, Any]:
    return {
        "id": _id(key),
        "name": key.name,
        "tenant": key.tenant,
        "role": key.role.value,
        "hint": key.hint,
        "created_at": int(key.created_at.timestamp()),
        "revoked_at": None if key.revoked_at is None else int(key.revoked_at.timestamp()),
    }
