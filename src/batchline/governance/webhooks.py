"""Changes of webhook endpoints. Each act and its audit record commit in one transaction.

The log shows who changed where a tenant's events go. It contains neither secrets nor the path of a URL.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from batchline.governance.access import Actor
from batchline.model import ids
from batchline.secrets.masking import masked
from batchline.store import webhooks
from batchline.store.audit import AuditEvent
from batchline.store.session import Session
from batchline.store.webhooks import Webhook

MAX_WEBHOOKS = 100
"""Per tenant, because each event is written once per webhook."""


async def add(
    session: Session, actor: Actor, *, name: str, url: str, events: Sequence[str], secret: str
) -> Webhook | None:
    """None: the tenant already has MAX_WEBHOOKS."""
    webhook_id = ids.new_id()
    return await webhooks.add(
        session,
        webhook_id,
        actor.tenant,
        name=name,
        url=url,
        events=events,
        secret=secret,
        maximum=MAX_WEBHOOKS,
        event=_event(actor, "webhook.created", webhook_id, name=name, url=url, event_types=list(events)),
    )


async def change(
    session: Session,
    actor: Actor,
    webhook_id: UUID,
    *,
    name: str | None,
    url: str | None,
    events: Sequence[str] | None,
) -> Webhook | None:
    """Change what is not None. None: the webhook does not exist."""
    changed = {"name": name, "url": url, "event_types": None if events is None else list(events)}
    detail = {key: value for key, value in changed.items() if value is not None}
    event = _event(actor, "webhook.changed", webhook_id, **detail)
    return await webhooks.change(
        session, actor.tenant, webhook_id, name=name, url=url, events=events, event=event
    )


async def delete(session: Session, actor: Actor, webhook_id: UUID) -> bool:
    """False: the webhook does not exist."""
    event = _event(actor, "webhook.deleted", webhook_id)
    return await webhooks.delete(session, actor.tenant, webhook_id, event)


async def rotate(
    session: Session, actor: Actor, webhook_id: UUID, secret: str, *, keep: float
) -> Webhook | None:
    """Replace the secret; the old one also signs for `keep` seconds. None: the webhook does not exist."""
    event = _event(actor, "webhook.secret_rotated", webhook_id, previous_signs_along=keep > 0)
    return await webhooks.rotate(session, actor.tenant, webhook_id, secret, event=event, keep=keep)


def _event(actor: Actor, action: str, webhook_id: UUID, **detail: Any) -> AuditEvent:
    reported = {"webhook_id": ids.show(ids.WEBHOOK, webhook_id), **masked(detail)}
    if "url" in reported:
        # Many receivers use the path as a password.
        url = urlsplit(reported["url"])
        reported["url"] = f"{url.scheme}://{url.hostname}/…"
    return AuditEvent(actor.tenant, actor.user, action, detail=reported)
