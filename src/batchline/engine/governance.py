"""Governed batches for those who ask for them: submit, decide, hold, retry, by one set of rules.

Who may do what: a user sees and changes his own batches; approvers see all of their tenant and decide; admins
may do everything in their tenant. Nobody approves what he submitted himself, unless the operation allows it.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from batchline.config import LimitSettings
from batchline.engine import changes, decisions, submissions
from batchline.engine.access import Actor
from batchline.engine.registry import Registry
from batchline.engine.rules import Rules
from batchline.engine.submissions import Submission, Submitted
from batchline.model import GovernedBatch
from batchline.store.session import Session


class Governor:
    """The rules, and all that can be done under them. Each act raises Refused where it cannot be."""

    def __init__(self, registry: Registry, limits: LimitSettings, window: str = "7d") -> None:
        self._rules = Rules(registry, limits, window)

    @property
    def registry(self) -> Registry:
        return self._rules.registry

    async def replay(self, session: Session, actor: Actor, asked: Submission) -> Submitted | None:
        return await submissions.replay(session, actor, asked)

    async def submit(self, session: Session, actor: Actor, asked: Submission) -> Submitted:
        return await submissions.submit(self._rules, session, actor, asked)

    async def approve(
        self,
        session: Session,
        actor: Actor,
        batch_id: UUID,
        reason: str | None = None,
        child_count: int | None = None,
    ) -> GovernedBatch:
        return await decisions.approve(self._rules, session, actor, batch_id, reason, child_count)

    async def reject(
        self, session: Session, actor: Actor, batch_id: UUID, reason: str | None = None
    ) -> GovernedBatch:
        return await decisions.reject(session, actor, batch_id, reason)

    async def cancel(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.cancel(session, actor, batch_id)

    async def pause(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.pause(session, actor, batch_id)

    async def resume(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.resume(session, actor, batch_id)

    async def append(
        self,
        session: Session,
        actor: Actor,
        batch_id: UUID,
        items: Sequence[Any],
        custom_ids: Sequence[str] | None = None,
    ) -> GovernedBatch:
        return await changes.append(self._rules, session, actor, batch_id, items, custom_ids)

    async def release(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.release(session, actor, batch_id)

    async def retry(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.retry(self._rules, session, actor, batch_id)
