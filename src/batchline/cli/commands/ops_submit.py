"""`batchline ops submit`: creates a governed batch from a file of items."""

import sys
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from batchline.batches.staging import MAX_SAMPLE, StagingRequest
from batchline.cli import options
from batchline.cli.display.console import CommandError, out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.ops_context import App, OpsSource, Reason, Tenant, User, admin, refusing, tell
from batchline.cli.runtime import Runtime, open_runtime, run_async
from batchline.cli.step_options import StepOptions
from batchline.governance import submissions
from batchline.governance.access import Actor
from batchline.governance.rules import Rules
from batchline.governance.submissions import Submission, Validated
from batchline.model import DEFAULT_TENANT, Approval, GovernedBatch, ids
from batchline.model.json_limits import MAX_DEPTH, why_not_json
from batchline.store.session import Session


def submit(
    *,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="A name from `batchline ops list`.")],
    items: Annotated[
        Path,
        typer.Argument(metavar="ITEMS", help="A JSON array of items, or one item per line. - is stdin."),
    ],
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id", metavar="UUID", help="Submitting again with the same id creates no second batch."
        ),
    ] = None,
    reason: Reason = None,
    hold: Annotated[bool, typer.Option("--hold", help="Do not run it until `ops release`.")] = False,
    staging: StepOptions,
    max_failed: Annotated[
        str | None,
        typer.Option("--max-failed", metavar="N|P%", help="Pause when more children have failed."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            "--sample",
            metavar="N",
            min=1,
            max=MAX_SAMPLE,
            help="Run N random children; the rest waits until their results are approved.",
        ),
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check everything, limits included, and create nothing.")
    ] = False,
    user: User = None,
    tenant: Tenant = DEFAULT_TENANT,
    config: options.Config = None,
    app: App = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Submit a batch of items. If one item is refused, none is submitted. All limits apply."""
    with reported_errors(as_json):
        requested = Submission(
            operation,
            _items(items),
            _request_id(request_id),
            reason,
            hold,
            staging=StagingRequest(staging.steps, staging.seconds, sample, max_failed),
        )
        rules = OpsSource(config, app, database, data_dir).rules()
        with open_runtime(database, data_dir) as runtime:
            if validate_only:
                _tell_valid(run_async(_validate(runtime, rules, admin(tenant, user), requested)), as_json)
                return
            batch = run_async(_submit(runtime, rules, admin(tenant, user), requested))
        tell(batch, as_json)


async def _submit(runtime: Runtime, rules: Rules, actor: Actor, requested: Submission) -> GovernedBatch:
    async with Session(runtime.url, "ops") as session:
        with refusing():
            return (await submissions.submit(rules, session, actor, requested)).batch


async def _validate(runtime: Runtime, rules: Rules, actor: Actor, requested: Submission) -> Validated:
    async with Session(runtime.url, "ops") as session:
        with refusing():
            return await submissions.validate(rules, session, actor, requested)


def _tell_valid(found: Validated, as_json: bool) -> None:
    made = None if found.made is None else ids.show(ids.BATCH, found.made.id)
    if as_json:
        print_json(
            {
                "valid": True,
                "child_count": found.child_count,
                "approval": found.approval.value,
                "batch_id": made,
            }
        )
        return
    needs = "; it would wait for an approval" if found.approval is Approval.PENDING else ""
    before = "" if made is None else f"; this request has created {made} before"
    out().print(f"valid: {found.child_count:,} items; nothing was created{needs}{before}", markup=False)


def _request_id(text: str | None) -> UUID | None:
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise CommandError(f"--request-id: {text!r} is not a UUID") from None


def _items(path: Path) -> list[Any]:
    """A JSON array, an object with one under `items`, or JSON lines."""
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        read = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return _lines(path, content)
    except RecursionError:
        raise CommandError(f"{path} is nested more than {MAX_DEPTH} levels deep") from None
    if isinstance(read, dict) and isinstance(read.get("items"), list):
        read = read["items"]
    return read if isinstance(read, list) else [read]


def _lines(path: Path, content: bytes) -> list[Any]:
    items = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                items.append(msgspec.json.decode(line))
            except (msgspec.DecodeError, RecursionError) as error:
                why = why_not_json(line) or error
                raise CommandError(f"{path}, line {number} is not JSON: {why}") from None
    return items
