"""Governed batches for those who ask for them: submit, decide, hold, retry, by one set of rules.

Who may do what: a user sees and changes his own batches; approvers see all of their tenant and decide; admins
may do everything in their tenant. Nobody approves what he submitted himself, unless the operation allows it.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from batchline.config.settings import LimitSettings
from batchline.governance import access, changes, decisions, submissions
from batchline.governance.access import Actor
from batchline.governance.preparation import Prepared, Preparing, PreparingHere
from batchline.governance.registry import Registry
from batchline.governance.rules import Rules
from batchline.governance.submissions import ReadySubmission, Submission, Submitted
from batchline.model import GovernedBatch
from batchline.store.session import Session


class Governor:
    """The rules, and all that can be done under them. Each act raises Refused where it cannot be."""

    def __init__(
        self,
        registry: Registry,
        limits: LimitSettings,
        window: str = "7d",
        preparing: Preparing | None = None,
    ) -> None:
        self._rules = Rules(registry, limits, window, preparing or PreparingHere())

    @property
    def registry(self) -> Registry:
        return self._rules.registry

    async def fingerprint(self, actor: Actor, requested: Submission) -> bytes:
        return await submissions.fingerprint_of(self._rules, actor, requested)

    async def replay(
        self, session: Session, actor: Actor, requested: Submission, fingerprint: bytes
    ) -> Submitted | None:
        return await submissions.replay(session, actor, requested, fingerprint)

    async def prepare(self, actor: Actor, requested: Submission, fingerprint: bytes) -> ReadySubmission:
        return await submissions.prepare(self._rules, actor, requested, fingerprint)

    async def create(self, session: Session, actor: Actor, ready: ReadySubmission) -> Submitted:
        return await submissions.create(self._rules, session, actor, ready)

    async def submit(self, session: Session, actor: Actor, requested: Submission) -> Submitted:
        """All the steps. Who has few sessions takes one for each step, as preparing may take long."""
        fingerprint = await self.fingerprint(actor, requested)
        # Before anything else: a replay is answered also when it would be refused by now.
        if (before := await self.replay(session, actor, requested, fingerprint)) is not None:
            return before
        return await self.create(session, actor, await self.prepare(actor, requested, fingerprint))

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

    async def prepare_append(
        self,
        actor: Actor,
        batch: GovernedBatch,
        items: Sequence[Any],
        custom_ids: Sequence[str] | None = None,
    ) -> Prepared:
        return await changes.prepare_append(self._rules, actor, batch, items, custom_ids)

    async def append_prepared(
        self, session: Session, actor: Actor, batch: GovernedBatch, prepared: Prepared
    ) -> GovernedBatch:
        return await changes.append(self._rules, session, actor, batch, prepared)

    async def append(
        self,
        session: Session,
        actor: Actor,
        batch_id: UUID,
        items: Sequence[Any],
        custom_ids: Sequence[str] | None = None,
    ) -> GovernedBatch:
        batch = await access.visible(session, actor, batch_id)
        prepared = await self.prepare_append(actor, batch, items, custom_ids)
        return await self.append_prepared(session, actor, batch, prepared)

    async def release(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.release(session, actor, batch_id)

    async def retry(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        return await changes.retry(self._rules, session, actor, batch_id)
