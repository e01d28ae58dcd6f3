"""/v1/webhook_endpoints: URLs that get an event when a batch ends, is paused by a rule, or waits for a
decision (`client.webhooks` of OpenAI's clients).

`…/deliveries` is not part of OpenAI's API. A secret is shown once, by the call that creates it.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from batchline.api.auth import Called
from batchline.api.context import InContext
from batchline.api.errors import NO_RETRY, ApiError, documented, not_found
from batchline.api.openai.pages import ListPage
from batchline.api.routing import AuthenticatedRoute
from batchline.config.settings import ServerSettings
from batchline.governance import webhooks as changes
from batchline.governance.access import Actor
from batchline.model import EVENTS, ids
from batchline.store import webhooks
from batchline.store.session import Session
from batchline.store.webhooks import Delivery, Message, Webhook
from batchline.webhooks import signing
from batchline.webhooks.addresses import AddressRefused, locate
from batchline.webhooks.sender import Sender

router = APIRouter(prefix="/v1", tags=["webhooks"], route_class=AuthenticatedRoute)

EventType = Literal[
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
    "batch.approval_requested",
    "batch.approved",
    "batch.rejected",
    "batch.paused",
]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
EventTypes = Annotated[list[EventType], Field(min_length=1, max_length=100)]


# Requests


class CreateWebhook(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    url: Annotated[str, Field(examples=["https://example.com/hook"])]
    event_types: EventTypes


class UpdateWebhook(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    url: str | None = None
    event_types: EventTypes | None = None


class RotateSecret(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keep_old_secret_active_for_24_hours: bool = False


class TestWebhook(BaseModel):
    model_config = ConfigDict(extra="forbid")

    event_type: EventType


# Responses


class WebhookEndpoint(BaseModel):
    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str
    event_types: list[str]
    signing_secret_hint: str
    created_at: int
    updated_at: int


class WebhookEndpointWithSecret(WebhookEndpoint):
    signing_secret: Annotated[str, Field(repr=False)]


class WebhookEndpointList(ListPage):
    data: list[WebhookEndpoint]


class WebhookEndpointDeleted(BaseModel):
    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: Literal[True] = True


class WebhookEndpointTest(BaseModel):
    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    success: Literal[True] = True
    status_code: int


class DeliveryObject(BaseModel):
    id: Annotated[str, Field(description="The event's id, sent to the receiver as webhook-id.")]
    object: Literal["webhook_endpoint.delivery"] = "webhook_endpoint.delivery"
    webhook_endpoint_id: str
    event_type: str
    batch_id: str
    status: Literal["pending", "delivered", "failed"]
    attempts: int
    created_at: int
    next_attempt_at: int | None
    delivered_at: int | None
    failed_at: int | None
    last_status_code: int | None
    last_error: str | None


class DeliveryList(ListPage):
    data: list[DeliveryObject]


class EventTypeList(BaseModel):
    object: Literal["list"] = "list"
    data: list[str]


# Routes


@router.post("/webhook_endpoints", responses=documented(409, 413))
async def create_webhook_endpoint(
    requested: CreateWebhook, context: InContext, caller: Called
) -> WebhookEndpointWithSecret:
    """Send an event to a URL whenever a batch of the tenant ends. The secret is shown only in this answer."""
    await _checked(requested.url, context.settings)
    secret = signing.new_secret()
    async with context.sessions.one() as session:
        made = await changes.add(
            session,
            caller,
            name=requested.name,
            url=requested.url,
            events=_distinct(requested.event_types),
            secret=secret,
        )
    if made is None:
        message = f"You already have {changes.MAX_WEBHOOKS} webhook endpoints. Delete one first."
        raise ApiError(409, message, code="too_many_webhooks", headers=NO_RETRY)
    return _with_secret(made, secret)


@router.get("/webhook_endpoints", responses=documented(404))
async def list_webhook_endpoints(
    context: InContext,
    caller: Called,
    after: Annotated[str | None, Query(description="The last endpoint of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> WebhookEndpointList:
    """Webhook endpoints, newest first."""
    async with context.sessions.one() as session:
        last = None if after is None else (await _named(session, caller, after, "after")).id
        page = await webhooks.list_newest(session, caller.tenant, limit=limit + 1, after=last)
    return WebhookEndpointList.of([_displayed(webhook) for webhook in page], limit)


@router.get("/webhook_endpoints/{webhook_endpoint_id}", responses=documented(404))
async def get_webhook_endpoint(
    webhook_endpoint_id: str, context: InContext, caller: Called
) -> WebhookEndpoint:
    async with context.sessions.one() as session:
        return _displayed(await _named(session, caller, webhook_endpoint_id))


@router.post("/webhook_endpoints/{webhook_endpoint_id}", responses=documented(404, 413))
async def update_webhook_endpoint(
    webhook_endpoint_id: str, requested: UpdateWebhook, context: InContext, caller: Called
) -> WebhookEndpoint:
    """Change the given fields. Events that are not delivered yet go to the new URL."""
    async with context.sessions.one() as session:
        found = await _named(session, caller, webhook_endpoint_id)
    if requested.url is not None:
        await _checked(requested.url, context.settings)
    async with context.sessions.one() as session:
        changed = await changes.change(
            session,
            caller,
            found.id,
            name=requested.name,
            url=requested.url,
            events=None if requested.event_types is None else _distinct(requested.event_types),
        )
    if changed is None:
        raise _unknown(webhook_endpoint_id)
    return _displayed(changed)


@router.delete("/webhook_endpoints/{webhook_endpoint_id}", responses=documented(404))
async def delete_webhook_endpoint(
    webhook_endpoint_id: str, context: InContext, caller: Called
) -> WebhookEndpointDeleted:
    """Delete an endpoint, its pending events and its list of deliveries."""
    webhook_id = ids.read(ids.WEBHOOK, webhook_endpoint_id)
    async with context.sessions.one() as session:
        if webhook_id is None or not await changes.delete(session, caller, webhook_id):
            raise _unknown(webhook_endpoint_id)
    return WebhookEndpointDeleted(id=ids.show(ids.WEBHOOK, webhook_id))


@router.post("/webhook_endpoints/{webhook_endpoint_id}/rotate_secret", responses=documented(404, 413))
async def rotate_webhook_secret(
    webhook_endpoint_id: str,
    context: InContext,
    caller: Called,
    requested: Annotated[RotateSecret | None, Body()] = None,
) -> WebhookEndpointWithSecret:
    """Create a new secret, shown only in this answer. The old secret can also sign for 24 hours."""
    keep = requested is not None and requested.keep_old_secret_active_for_24_hours
    secret = signing.new_secret()
    async with context.sessions.one() as session:
        found = await _named(session, caller, webhook_endpoint_id)
        rotated = await changes.rotate(
            session, caller, found.id, secret, keep=signing.KEEP_PREVIOUS if keep else 0.0
        )
    if rotated is None:
        raise _unknown(webhook_endpoint_id)
    return _with_secret(rotated, secret)


@router.post("/webhook_endpoints/{webhook_endpoint_id}/test", responses=documented(404, 413, 422))
async def test_webhook_endpoint(
    webhook_endpoint_id: str, requested: TestWebhook, context: InContext, caller: Called
) -> WebhookEndpointTest:
    """Send a sample event now, about a batch that does not exist, and return the status of the answer."""
    async with context.sessions.one() as session:
        found = await _named(session, caller, webhook_endpoint_id)
        secrets = await webhooks.secrets(session, caller.tenant, found.id)
    message = Message(ids.new_id(), ids.new_id(), requested.event_type, datetime.now(UTC), attempts=1)
    sent = await Sender(allow_private=context.settings.allow_private_webhooks).send(
        found.url, message, secrets
    )
    if sent.attempt.status is None:
        reported = f"The endpoint could not be reached: {sent.attempt.error}."
        raise ApiError(422, reported, code="webhook_unreachable", headers=NO_RETRY)
    return WebhookEndpointTest(
        webhook_endpoint_id=ids.show(ids.WEBHOOK, found.id),
        event_type=requested.event_type,
        status_code=sent.attempt.status,
    )


@router.get("/webhook_endpoints/{webhook_endpoint_id}/deliveries", responses=documented(404))
async def list_deliveries(
    webhook_endpoint_id: str,
    context: InContext,
    caller: Called,
    after: Annotated[str | None, Query(description="The last delivery of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> DeliveryList:
    """Deliveries to an endpoint in the last 30 days, newest first. OpenAI's API has no such call."""
    async with context.sessions.one() as session:
        found = await _named(session, caller, webhook_endpoint_id)
        last = None if after is None else await _delivered(session, found.id, after)
        page = await webhooks.deliveries(session, found.id, limit=limit + 1, after=last)
    return DeliveryList.of([_reported(delivery) for delivery in page], limit)


@router.get("/webhook_event_types", responses=documented())
async def list_webhook_event_types(caller: Called) -> EventTypeList:
    """Event types that an endpoint can subscribe to."""
    return EventTypeList(data=list(EVENTS))


async def _checked(url: str, settings: ServerSettings) -> None:
    """Refuse a URL that could never be used. Each delivery checks the address again."""
    try:
        await locate(url, allow_private=settings.allow_private_webhooks)
    except AddressRefused as error:
        raise ApiError(400, f"Invalid 'url': {error}.", code="invalid_webhook_url", param="url") from None


async def _named(session: Session, caller: Actor, text: str, param: str = "webhook_endpoint_id") -> Webhook:
    webhook_id = ids.read(ids.WEBHOOK, text)
    found = None if webhook_id is None else await webhooks.get(session, caller.tenant, webhook_id)
    if found is None:
        raise _unknown(text, param)
    return found


async def _delivered(session: Session, webhook_id: UUID, text: str) -> UUID:
    """The event id of the delivery after which a page begins."""
    event_id = ids.read(ids.EVENT, text)
    if event_id is None or not await webhooks.has_delivery(session, webhook_id, event_id):
        raise not_found("delivery", text, "after")
    return event_id


def _unknown(text: str, param: str = "webhook_endpoint_id") -> ApiError:
    return not_found("webhook endpoint", text, param)


def _distinct(events: list[EventType]) -> list[str]:
    return list(dict.fromkeys(events))


def _displayed(webhook: Webhook) -> WebhookEndpoint:
    return WebhookEndpoint(
        id=ids.show(ids.WEBHOOK, webhook.id),
        name=webhook.name,
        url=webhook.url,
        event_types=webhook.events,
        signing_secret_hint=signing.hint(webhook.secret_end),
        created_at=int(webhook.created_at.timestamp()),
        updated_at=int(webhook.updated_at.timestamp()),
    )


def _with_secret(webhook: Webhook, secret: str) -> WebhookEndpointWithSecret:
    return WebhookEndpointWithSecret(**_displayed(webhook).model_dump(), signing_secret=secret)


def _reported(delivery: Delivery) -> DeliveryObject:
    over = delivery.delivered_at or delivery.failed_at
    return DeliveryObject(
        id=ids.show(ids.EVENT, delivery.event_id),
        webhook_endpoint_id=ids.show(ids.WEBHOOK, delivery.webhook_id),
        event_type=delivery.type,
        batch_id=ids.show(ids.BATCH, delivery.batch_id),
        status="delivered" if delivery.delivered_at else "failed" if delivery.failed_at else "pending",
        attempts=delivery.attempts,
        created_at=int(delivery.created_at.timestamp()),
        next_attempt_at=None if over else _unix(delivery.available_at),
        delivered_at=_unix(delivery.delivered_at),
        failed_at=_unix(delivery.failed_at),
        last_status_code=delivery.last_status,
        last_error=delivery.last_error,
    )


def _unix(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
