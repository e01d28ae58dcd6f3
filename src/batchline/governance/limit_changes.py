"""Changes of limits by an admin. Each act and its audit record commit in one transaction."""

from datetime import datetime
from typing import Any

from batchline.governance.access import Actor
from batchline.governance.errors import InvalidSubmission, NotFound
from batchline.secrets.masking import masked_text
from batchline.store import limits
from batchline.store.audit import AuditEvent
from batchline.store.limits import Exemption, Override
from batchline.store.session import Session


async def exempt(
    session: Session, actor: Actor, user: str, *, reason: str, expires_at: datetime
) -> Exemption:
    """Lift the limits of one user until a moment, in place of an earlier exemption.

    The global limits still apply. Raises InvalidSubmission if the moment has passed.
    """
    masked = masked_text(reason)
    event = _event(actor, "limits.exempted", user, reason=masked, expires_at=expires_at.isoformat())
    made = await limits.exempt(session, actor.tenant, user, reason=masked, expires_at=expires_at, event=event)
    if made is None:
        message = f"Invalid 'expires_at': {expires_at.isoformat()} is in the past."
        raise InvalidSubmission(message, code="INVALID_REQUEST", param="expires_at")
    return made


async def drop_exemption(session: Session, actor: Actor, user: str, *, reason: str | None = None) -> None:
    """End an exemption now. Raises NotFound."""
    detail = {} if reason is None else {"reason": masked_text(reason)}
    event = _event(actor, "limits.exemption_dropped", user, **detail)
    if not await limits.drop_exemption(session, actor.tenant, user, event):
        raise NotFound(f"User {user!r} is not exempt.", code="EXEMPTION_NOT_FOUND", param="user_id")


async def set_limits(
    session: Session, actor: Actor, user: str, *, parents: int, children: int, cooldown: int, reason: str
) -> Override:
    """Give one user other limits than the defaults."""
    masked = masked_text(reason)
    event = _event(
        actor,
        "limits.set",
        user,
        reason=masked,
        max_pending_parents=parents,
        max_pending_children=children,
        cooldown_seconds=cooldown,
    )
    return await limits.set_override(
        session,
        actor.tenant,
        user,
        parents=parents,
        children=children,
        cooldown=cooldown,
        reason=masked,
        event=event,
    )


def _event(actor: Actor, action: str, user: str, **detail: Any) -> AuditEvent:
    return AuditEvent(actor.tenant, actor.user, action, subject=user, detail=detail)
