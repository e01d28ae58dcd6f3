"""/v1/files: create, list, get, download and delete files, as OpenAI's clients do."""

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from batchline.api.auth import Called
from batchline.api.context import ApiContext, InContext
from batchline.api.downloads import InDownloads
from batchline.api.errors import NO_RETRY, ApiError, documented, not_found
from batchline.api.openai import content
from batchline.api.openai.intake import (
    MAX_LIFE,
    MIN_LIFE,
    PURPOSES,
    IdempotencyKey,
    InIntake,
    check_purpose,
    life,
    rules,
    too_late,
)
from batchline.api.openai.multipart import MAX_OVERHEAD, Form, form_of, missing, too_large
from batchline.api.openai.pages import ListPage
from batchline.api.routing import AuthenticatedRoute
from batchline.files.ingest import TooLate
from batchline.files.intake import ContentTooLarge, Description, arriving
from batchline.governance.access import Actor
from batchline.model import Batch, File, ids
from batchline.store import batches, files, tenants
from batchline.store.idempotency import IdempotencyConflict

router = APIRouter(prefix="/v1/files", tags=["files"], route_class=AuthenticatedRoute)

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_MAX_LISTED = 10_000


class FileObject(BaseModel):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"]
    expires_at: int | None
    status_details: str | None


class FileList(ListPage):
    data: list[FileObject]


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool


# For the OpenAPI document: the route reads the form itself.
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": list(PURPOSES)},
                        _ANCHOR: {"type": "string", "enum": ["created_at"]},
                        _SECONDS: {"type": "integer", "minimum": MIN_LIFE, "maximum": MAX_LIFE},
                    },
                }
            }
        },
    }
}
_CONTENT: dict[int | str, dict[str, Any]] = {
    status: {"description": described, "content": {"application/octet-stream": {}}}
    for status, described in (
        (200, "The whole content; for a running batch, the finished lines."),
        (206, "A range of the content."),
    )
}


@router.post("", responses=documented(408, 409, 413, 415, 422), openapi_extra=_FORM)
async def create_file(
    request: Request,
    context: InContext,
    called: Called,
    intake: InIntake,
    idempotency_key: IdempotencyKey = None,
) -> FileObject:
    """Upload a file. The answer comes when it is stored and, for purpose `batch`, its lines are ingested."""
    maximum = context.settings.max_file_bytes
    form = form_of(request, "file", maximum)
    # A request that is repeated with its key gets its file even if there is no room for another.
    limit = maximum if idempotency_key else await _limit(request, context, called)
    async with intake.slot(called.tenant), arriving(context.objects) as arrival:
        try:
            part = await form.reach_file()
            if "purpose" in form.fields:
                check_purpose(form.fields["purpose"])
            received = await arrival.write(form.content(), limit)
            await form.rest()
            described = _described(form, part.filename, called, context)
            file = await intake.record(
                arrival, received, described, rules(context.settings), key=idempotency_key
            )
        except ContentTooLarge as error:
            if error.maximum < maximum:
                await _limit(request, context, called, error.maximum + 1)
            raise too_large(error.maximum, "file") from None
        except TooLate:
            raise too_late() from None
        except IdempotencyConflict as before:
            file = await _made_before(context, called, before)
    return show_file(file)


@router.get("", responses=documented(404))
async def list_files(
    context: InContext,
    called: Called,
    purpose: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_LISTED)] = _MAX_LISTED,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(description="The last file of the previous page.")] = None,
) -> FileList:
    last = None if after is None else await _listed(context, called, after)
    async with context.sessions.one() as session:
        found = await files.page(
            session, called.tenant, limit=limit + 1, order=order, after=last, purpose=purpose
        )
    return FileList.of([show_file(file) for file in found], limit)


@router.get("/{file_id}", responses=documented(404))
async def get_file(file_id: str, context: InContext, called: Called) -> FileObject:
    match await _found(context, called, file_id):
        case File() as file:
            return show_file(file)
        case batch:
            return _show_planned(batch)


@router.head("/{file_id}/content", include_in_schema=False)
@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={**documented(404, 416), **_CONTENT, 304: {"description": "The client's copy is current."}},
)
async def get_content(
    file_id: str, request: Request, context: InContext, called: Called, downloads: InDownloads
) -> Response:
    """The content, or a range of it. The output of a running batch contains the finished lines."""
    match await _found(context, called, file_id):
        case File(object_key=None) as file:
            return content.rebuilt(request, context, downloads, file)
        case File() as file:
            return content.stored(request, context.objects, downloads, file)
        case batch:
            return content.so_far(request, context, downloads, batch)


@router.delete("/{file_id}", responses=documented(404, 409))
async def delete_file(file_id: str, context: InContext, called: Called) -> FileDeleted:
    """Hide a file at once. Running batches over it continue, and their output files stay."""
    match await _found(context, called, file_id):
        case File() as file:
            async with context.sessions.one() as session:
                deleted = await files.delete(session, called.tenant, file.id)
            if not deleted:
                raise not_found("file", file_id, "file_id")
        case _:
            message = "The batch that writes this file is still running. Cancel it first."
            raise ApiError(409, message, code="file_in_use", param="file_id", headers=NO_RETRY)
    return FileDeleted(id=ids.show(ids.FILE, file.id), deleted=True)


def show_file(file: File) -> FileObject:
    return FileObject(
        id=ids.show(ids.FILE, file.id),
        bytes=file.bytes,
        created_at=int(file.created_at.timestamp()),
        filename=file.filename,
        purpose=file.purpose,
        status="processed" if file.errors is None else "error",
        expires_at=None if file.expires_at is None else int(file.expires_at.timestamp()),
        status_details=None if file.errors is None else _details(file),
    )


def _details(file: File) -> str:
    assert file.errors
    first = file.errors[0]
    prefix = "" if first.line is None else f"line {first.line}: "
    return f"{prefix}{first.message}"


def _show_planned(batch: Batch) -> FileObject:
    """The output file of a running batch. Its size is not known yet."""
    assert batch.planned_output_id is not None
    return FileObject(
        id=ids.show(ids.FILE, batch.planned_output_id),
        bytes=0,
        created_at=int(batch.created_at.timestamp()),
        filename=content.output_name(batch),
        purpose="batch_output",
        status="processed",
        expires_at=None,
        status_details=f"incomplete: {batch.finished} of {batch.total} requests are finished",
    )


async def _found(context: ApiContext, called: Actor, displayed: str) -> File | Batch:
    """The file, or the running batch that will write it. Looks twice, because the batch may end meanwhile."""
    file_id = ids.read(ids.FILE, displayed)
    if file_id is not None:
        async with context.sessions.one() as session:
            for _ in range(2):
                if file := await files.visible(session, called.tenant, file_id):
                    return file
                if batch := await batches.with_planned_output(session, called.tenant, file_id):
                    return batch
    raise not_found("file", displayed, "file_id")


async def _listed(context: ApiContext, called: Actor, displayed: str) -> File:
    """The file after which a page begins. It may have been deleted since it was listed."""
    file_id = ids.read(ids.FILE, displayed)
    if file_id is not None:
        async with context.sessions.one() as session:
            file = await files.get(session, file_id)
        if file is not None and file.tenant == called.tenant:
            return file
    raise not_found("file", displayed, "after")


async def _limit(request: Request, context: ApiContext, called: Actor, size: int = 1) -> int:
    """The bytes that a file may have: as the settings allow, and as the tenant has room.

    Refuses a body of at least `size` bytes that does not fit, before it is read.
    """
    announced = request.headers.get("content-length", "")
    smallest = int(announced) - MAX_OVERHEAD if announced.isdecimal() else 0
    async with context.sessions.one() as session:
        room = await tenants.check_room(session, called.tenant, max(size, smallest))
    maximum = context.settings.max_file_bytes
    return maximum if room is None else min(maximum, room)


def _described(form: Form, filename: str, called: Actor, context: ApiContext) -> Description:
    if "purpose" not in form.fields:
        raise missing("purpose")
    purpose = check_purpose(form.fields["purpose"])
    return Description(
        tenant=called.tenant,
        purpose=purpose,
        filename=filename,
        expires_after=life(context.settings, purpose, _expires_after(form.fields)),
    )


def _expires_after(fields: dict[str, str]) -> int | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise ApiError(400, f"'{_ANCHOR}' must be 'created_at'.", code="invalid_value", param=_ANCHOR)
    number = int(seconds) if seconds and re.fullmatch(r"[0-9]{1,9}", seconds) else -1
    if not MIN_LIFE <= number <= MAX_LIFE:
        message = f"'{_SECONDS}' must be a number from {MIN_LIFE} to {MAX_LIFE}."
        raise ApiError(400, message, code="invalid_value", param=_SECONDS)
    return number


async def _made_before(context: ApiContext, called: Actor, before: IdempotencyConflict) -> File:
    if not before.same:
        message = "This Idempotency-Key was used for a different file. Use a new key."
        raise ApiError(422, message, code="idempotency_key_reused", param="Idempotency-Key")
    async with context.sessions.one() as session:
        file = await files.visible(session, called.tenant, before.object_id)
    if file is None:
        message = "The file that this Idempotency-Key created was deleted. Use a new key."
        raise ApiError(409, message, code="file_deleted", param="Idempotency-Key", headers=NO_RETRY)
    return file
