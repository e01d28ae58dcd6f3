"""/v1/uploads: large files in parts, which may be sent concurrently, as OpenAI's clients do."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from batchline.api.auth import Called
from batchline.api.context import ApiContext, InContext
from batchline.api.errors import NO_RETRY, ApiError, documented, not_found
from batchline.api.openai.files import FileObject, show_file
from batchline.api.openai.intake import PURPOSES, ExpiresAfter, InIntake, check_purpose, life, rules, too_late
from batchline.api.openai.multipart import clean_filename, form_of, too_large
from batchline.api.routing import AuthenticatedRoute
from batchline.files import uploads as parts_of
from batchline.files.ingest import TooLate, UploadEnded
from batchline.files.intake import BATCH_PURPOSE, ContentTooLarge, Description, arriving
from batchline.files.objects import PARTS, ObjectNotFound
from batchline.governance.access import Actor
from batchline.model import File, ids
from batchline.store import files, uploads
from batchline.store.uploads import NewUpload, Part, Upload, UploadStatus

router = APIRouter(prefix="/v1/uploads", tags=["uploads"], route_class=AuthenticatedRoute)

_MAX_PARTS = 10_000

PartId = Annotated[str, Field(max_length=64)]


class CreateUpload(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bytes: Annotated[int, Field(ge=1, strict=True)]
    filename: Annotated[str, Field(min_length=1, max_length=1024)]
    mime_type: Annotated[str, Field(min_length=1, max_length=255)]
    purpose: Annotated[str, Field(json_schema_extra={"enum": list(PURPOSES)})]
    expires_after: ExpiresAfter | None = None


class CompleteUpload(BaseModel):
    model_config = ConfigDict(extra="forbid")

    part_ids: Annotated[list[PartId], Field(max_length=_MAX_PARTS, fail_fast=True)]
    md5: Annotated[str, Field(max_length=64)] | None = None


class UploadObject(BaseModel):
    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None


class PartObject(BaseModel):
    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["data"],
                    "properties": {"data": {"type": "string", "format": "binary"}},
                }
            }
        },
    }
}


@router.post("", responses=documented(413))
async def create_upload(requested: CreateUpload, context: InContext, called: Called) -> UploadObject:
    settings = context.settings
    purpose = check_purpose(requested.purpose)
    maximum = settings.max_upload_bytes
    if purpose == BATCH_PURPOSE:
        maximum = min(maximum, settings.max_file_bytes)
    if requested.bytes > maximum:
        raise too_large(maximum, "bytes")
    new = NewUpload(
        id=ids.new_id(),
        tenant=called.tenant,
        purpose=purpose,
        filename=clean_filename(requested.filename),
        mime_type=requested.mime_type,
        bytes=requested.bytes,
        expires_after=requested.expires_after.seconds if requested.expires_after else None,
        lifetime=settings.upload_lifetime,
    )
    async with context.sessions.one() as session:
        return _show(await uploads.create(session, new))


@router.post("/{upload_id}/parts", responses=documented(404, 408, 409, 413, 415), openapi_extra=_FORM)
async def add_part(
    upload_id: str, request: Request, context: InContext, called: Called, intake: InIntake
) -> PartObject:
    """Stream one part into the object store."""
    upload = await _pending(context, called, upload_id)
    maximum = context.settings.max_part_bytes
    form = form_of(request, "data", maximum)
    async with intake.slot(called.tenant), arriving(context.objects, f"{PARTS}{upload.id.hex}/") as arrival:
        try:
            await form.reach_file()
            content = await arrival.write(form.content(), maximum)
            await form.rest()
        except ContentTooLarge:
            raise too_large(maximum, "data") from None
        except TooLate:
            raise too_late() from None
        if content.size == 0:
            raise ApiError(
                400, "The part is empty. Send at least one byte.", code="invalid_value", param="data"
            )
        part = Part(arrival.id, content.size, arrival.key)
        arrival.ours = False
        async with context.sessions.one() as session:
            created_at = await uploads.add_part(
                session,
                called.tenant,
                upload.id,
                part,
                max_parts=_MAX_PARTS,
                # Room to send every part twice, and one more.
                max_bytes=2 * upload.bytes + maximum,
            )
        if created_at is None:
            arrival.ours = True
            await _pending(context, called, upload_id)
            message = f"The parts have more bytes than the upload's {upload.bytes:,}."
            raise ApiError(400, message, code="invalid_value", param="data")
    return PartObject(
        id=ids.show(ids.PART, part.id),
        created_at=int(created_at.timestamp()),
        upload_id=ids.show(ids.UPLOAD, upload.id),
    )


@router.post("/{upload_id}/complete", responses=documented(404, 408, 409, 413))
async def complete_upload(
    upload_id: str, requested: CompleteUpload, context: InContext, called: Called, intake: InIntake
) -> UploadObject:
    """Create the file from the parts, in the order of `part_ids`. Repeating it returns the same file."""
    upload = await _found(context, called, upload_id)
    if upload.status is UploadStatus.COMPLETED:
        return await _completed(context, upload)
    _check_pending(upload)
    parts = await _chosen(context, upload, requested.part_ids)
    described = Description(
        called.tenant,
        upload.purpose,
        upload.filename,
        life(context.settings, upload.purpose, upload.expires_after),
    )
    async with intake.slot(called.tenant), arriving(context.objects) as arrival:
        try:
            content = await arrival.write(
                parts_of.joined(context.objects, parts), upload.bytes, with_md5=requested.md5 is not None
            )
            if requested.md5 is not None and requested.md5.lower() != content.md5:
                message = f"The md5 of the parts is {content.md5}, not the given one. Send the parts again."
                raise ApiError(400, message, code="md5_mismatch", param="md5")
            await intake.record(arrival, content, described, rules(context.settings), upload_id=upload.id)
        except TooLate:
            raise too_late() from None
        except (UploadEnded, ObjectNotFound):
            # A concurrent request has completed or cancelled the upload.
            upload = await _found(context, called, upload_id)
            if upload.status is not UploadStatus.COMPLETED:
                _check_pending(upload)
                raise
    async with context.sessions.one() as session:
        await parts_of.clear(session, context.objects, upload.id)
    return await _completed(context, await _found(context, called, upload_id))


@router.post("/{upload_id}/cancel", responses=documented(404, 409))
async def cancel_upload(upload_id: str, context: InContext, called: Called) -> UploadObject:
    """Accept no more parts and delete the existing ones."""
    upload = await _found(context, called, upload_id)
    if upload.status is not UploadStatus.CANCELLED:
        _check_pending(upload)
        async with context.sessions.one() as session:
            cancelled = await uploads.cancel(session, called.tenant, upload.id)
        upload = await _found(context, called, upload_id)
        if not cancelled and upload.status is not UploadStatus.CANCELLED:
            _check_pending(upload)
            raise ApiError(
                409,
                "The upload is being completed. Wait until it has ended.",
                code="upload_in_use",
                param="upload_id",
            )
    async with context.sessions.one() as session:
        await parts_of.clear(session, context.objects, upload.id)
    return _show(upload)


def _show(upload: Upload, file: File | None = None) -> UploadObject:
    return UploadObject(
        id=ids.show(ids.UPLOAD, upload.id),
        bytes=upload.bytes,
        created_at=int(upload.created_at.timestamp()),
        expires_at=int(upload.expires_at.timestamp()),
        filename=upload.filename,
        purpose=upload.purpose,
        status=upload.status.value,
        file=None if file is None else show_file(file),
    )


async def _completed(context: ApiContext, upload: Upload) -> UploadObject:
    """With its file, even if that was deleted since."""
    assert upload.file_id is not None
    async with context.sessions.one() as session:
        return _show(upload, await files.get(session, upload.file_id))


async def _found(context: ApiContext, called: Actor, displayed: str) -> Upload:
    upload_id = ids.read(ids.UPLOAD, displayed)
    if upload_id is not None:
        async with context.sessions.one() as session:
            upload = await uploads.get(session, called.tenant, upload_id)
        if upload is not None:
            return upload
    raise not_found("upload", displayed, "upload_id")


async def _pending(context: ApiContext, called: Actor, displayed: str) -> Upload:
    upload = await _found(context, called, displayed)
    _check_pending(upload)
    return upload


def _check_pending(upload: Upload) -> None:
    if upload.status is not UploadStatus.PENDING:
        message = f"The upload is {upload.status}. Create a new one."
        raise ApiError(400, message, code=f"upload_{upload.status}", param="upload_id", headers=NO_RETRY)


async def _chosen(context: ApiContext, upload: Upload, displayed: Sequence[str]) -> list[Part]:
    """The parts of the file. Raises ApiError unless they are distinct and have the upload's size."""
    async with context.sessions.one() as session:
        existing = await uploads.parts(session, upload.id)
    chosen: list[Part] = []
    for part_id in displayed:
        part = existing.get(ids.read(ids.PART, part_id) or upload.id)
        if part is None:
            message = f"This upload has no part {part_id}."
            raise ApiError(400, message, code="invalid_value", param="part_ids")
        chosen.append(part)
    if len({part.id for part in chosen}) < len(chosen):
        raise ApiError(
            400, "part_ids contains a part more than once.", code="invalid_value", param="part_ids"
        )
    size = sum(part.bytes for part in chosen)
    if size != upload.bytes:
        message = f"The parts have {size:,} bytes together, but the upload has {upload.bytes:,}."
        raise ApiError(400, message, code="size_mismatch", param="part_ids")
    return chosen
