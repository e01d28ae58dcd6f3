"""/v1/responses with `background: true`: create, get and cancel. Each is a batch of one line."""

from hashlib import sha256
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.errors import NO_RETRY, ApiError, documented, not_found
from batchline.api.openai.batches import served
from batchline.api.routing import AuthenticatedRoute
from batchline.batches import responses
from batchline.batches.responses import ResponseRequest, line_of
from batchline.files.parsing import LineFault, LineRequest
from batchline.governance.access import Actor
from batchline.model import Batch, ids
from batchline.store import batches
from batchline.store.idempotency import IdempotencyConflict, IdempotencyKey
from batchline.store.session import Session

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=AuthenticatedRoute)

_SCOPE = "responses"
_DISPLAYED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"schema": {"type": "object"}}}}
}


class CreateResponse(BaseModel):
    """Other parameters are passed on to the upstream."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: Any = None
    background: Annotated[Literal[True], Field(description="Only background responses are served.")]


@router.post("", response_class=Response, responses={**_DISPLAYED, **documented(400, 413, 422)})
async def create_response(
    requested: CreateResponse,
    request: Request,
    context: InContext,
    caller: Called,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="Repeating a request with the same key and body returns the same response.",
        ),
    ] = None,
) -> Response:
    """Accept a response, to be made in the background."""
    body, settings = await request.body(), context.settings
    order = ResponseRequest(
        tenant=caller.tenant,
        line=_line(body),
        served=served(settings),
        window=settings.windows[0],
        input_expires_after=settings.input_retention,
        output_expires_after=None if settings.output_retention is None else int(settings.output_retention),
        idempotency_key=None
        if idempotency_key is None
        else IdempotencyKey(caller.tenant, _SCOPE, idempotency_key, sha256(body).digest()),
    )
    async with context.sessions.one() as session:
        try:
            batch = await responses.create(session, order)
        except LineFault as fault:
            raise _invalid(fault) from None
        except IdempotencyConflict as made:
            if not made.same:
                message = "This Idempotency-Key was used with other parameters. Use a new key."
                code = "idempotency_key_reused"
                raise ApiError(422, message, code=code, headers=NO_RETRY) from None
            batch = await _named(session, caller, ids.show(ids.RESPONSE, made.object_id))
        return await _displayed(session, batch)


@router.get("/{response_id}", response_class=Response, responses={**_DISPLAYED, **documented(404)})
async def get_response(
    response_id: str,
    context: InContext,
    caller: Called,
    stream: bool = False,
    # The official client may send these. There is nothing to include, and nothing is streamed.
    include: Annotated[list[str] | None, Query(alias="include[]")] = None,
    include_obfuscation: bool | None = None,
    starting_after: int | None = None,
) -> Response:
    if stream:
        raise ApiError(400, "Responses are not streamed here. Leave out stream.", param="stream")
    async with context.sessions.one() as session:
        return await _displayed(session, await _named(session, caller, response_id))


@router.post(
    "/{response_id}/cancel", response_class=Response, responses={**_DISPLAYED, **documented(404, 413)}
)
async def cancel_response(response_id: str, context: InContext, caller: Called) -> Response:
    """Run it no more. A request in flight may finish. Repeating it changes nothing."""
    async with context.sessions.one() as session:
        batch = await _named(session, caller, response_id)
        # Of a batch that is no response, nothing is shown and nothing cancelled.
        await _displayed(session, batch)
        await batches.close(session, batch.id, "cancel")
        return await _displayed(session, await _named(session, caller, response_id))


def _line(body: bytes) -> LineRequest:
    try:
        return line_of(body)
    except LineFault as fault:
        raise _invalid(fault) from None


def _invalid(fault: LineFault) -> ApiError:
    param = fault.param.removeprefix("body.") if fault.param else None
    message = f"{fault}.".replace("body.", "")
    return ApiError(400, message[:1].upper() + message[1:], code=fault.code.value, param=param)


async def _named(session: Session, caller: Actor, text: str) -> Batch:
    batch_id = ids.read(ids.RESPONSE, text)
    batch = None if batch_id is None else await batches.of_tenant(session, caller.tenant, batch_id)
    if batch is None:
        raise not_found("response", text, "response_id")
    return batch


async def _displayed(session: Session, batch: Batch) -> Response:
    content = await responses.show(session, batch)
    if content is None:
        raise not_found("response", ids.show(ids.RESPONSE, batch.id), "response_id")
    return Response(content, media_type="application/json")
