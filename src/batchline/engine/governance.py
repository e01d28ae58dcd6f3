"""Governed batches for those who ask for them: submit, decide, hold, retry, and who may do what.

Submission is one transaction: the limits' locks, the look whether the request was made before, the limits,
the batch with all its children, the audit row. Whatever fails, nothing was there. Execution is the engine's,
as of any other batch.

Who may do what: a user sees and changes his own batches; approvers see all of their tenant and decide; admins
may do everything in their tenant. Nobody approves what he submitted himself, unless the operation allows it.
"""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from batchline.config import LimitSettings
from batchline.engine.batches import window_seconds
from batchline.engine.masking import masked_text
from batchline.engine.operations import Operation, Registry, UnknownOperation, url_of
from batchline.ids import new_id
from batchline.model import Approval, Child, GovernedBatch, Role, RunSettings
from batchline.store import operations
from batchline.store.audit import Event
from batchline.store.limits import Measured
from batchline.store.operations import Changing, Children, NewOperationBatch, OperationBatchNotFound
from batchline.store.session import Session

# The executor of the operation that decides on other batches.
APPROVALS = "approvals"
# How long to wait for others' batches to end, where nobody can say how long it takes.
_WAIT = 30
_MOST_REASON = 2000
_LONGEST_CUSTOM_ID = 512
# An audit row tells what was asked for, within reason.
_MOST_AUDITED_ITEMS = 100


class Actor(msgspec.Struct, frozen=True):
    """Who asks: the name of a key within its tenant, and what it may do."""

    tenant: str
    user: str
    role: Role
    # He calls a server that asks for no keys: nobody else could approve what he submits.
    alone: bool = False


class Submission(msgspec.Struct, frozen=True):
    operation: str
    items: Sequence[Any]
    request_id: UUID | None = None
    reason: str | None = None
    hold: bool = False
    # Names for the children, as many as there are items; None: their numbers.
    custom_ids: Sequence[str] | None = None

    def fingerprint(self) -> bytes:
        asked = [self.operation, self.items, self.reason, self.hold, self.custom_ids]
        return sha256(msgspec.json.encode(asked, order="sorted")).digest()


class Submitted(msgspec.Struct, frozen=True):
    batch: GovernedBatch
    # The request was made before, and this is its batch.
    replayed: bool


class Refused(Exception):
    """What was asked for cannot be. The message is for a person, and holds no secret."""

    code = "INVALID_BATCH_REQUEST"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param


class InvalidSubmission(Refused):
    """Something is wrong with the request itself."""


class TooLarge(Refused):
    """More children than any wait would let in."""

    code = "BATCH_SIZE_EXCEEDED"


class NotAllowed(Refused):
    """The caller may see it, and may not do this."""

    code = "PERMISSION_DENIED"


class NotThere(Refused):
    """It is not there, or is nobody's business but its owner's."""

    code = "BATCH_NOT_FOUND"


class RequestIdReused(Refused):
    """The request_id stands for something else already."""

    code = "REQUEST_ID_REUSED"


class WrongState(Refused):
    """Not now, or not any more: each act has a code of its own."""


class LimitReached(Refused):
    """Too much is pending, or it is too soon. Trying again later may help."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, limit_type: str, current: int, most: int, retry_after: float, message: str) -> None:
        super().__init__(message)
        self.limit_type = limit_type
        self.current_value = current
        self.max_value = most
        self.retry_after = max(1, math.ceil(retry_after))


class Governor:
    """The operations that there are, the limits on them, and what can be done with their batches."""

    def __init__(self, registry: Registry, limits: LimitSettings, window: str = "7d") -> None:
        self.registry = registry
        self.limits = limits
        self._window = window

    # --- Submission ----------------------------------------------------------------------------------------

    async def submit(self, session: Session, actor: Actor, asked: Submission) -> Submitted:
        fingerprint = _fingerprint(asked)
        # Before anything else: a replay is answered also when it would be refused by now.
        if asked.request_id is not None:
            found = await operations.find(
                session, actor.tenant, actor.user, asked.operation, asked.request_id
            )
            if found is not None:
                return await self._replayed(session, actor, found, fingerprint)
        operation = self.operation(asked.operation)
        if operation.executor == APPROVALS and actor.role is Role.USER:
            raise NotAllowed("Only approvers and admins decide.")
        children = self._children(operation, asked.items, asked.custom_ids)
        new = self._new(actor, operation, asked, children, fingerprint)
        try:
            async with operations.submitting(session, actor.tenant, actor.user) as submitting:
                if asked.request_id is not None:
                    made = await submitting.made_before(
                        actor.tenant, actor.user, asked.operation, asked.request_id
                    )
                    if made is not None:
                        raise _MadeMeanwhile(made)
                self.check(submitting.measured, children=len(asked.items))
                await submitting.create(new)
                await submitting.audit(self._submitted(actor, operation, asked, new))
        except _MadeMeanwhile as quicker:
            return await self._replayed(session, actor, quicker.made, fingerprint)
        return Submitted(await _there(session, actor, new.id), replayed=False)

    def operation(self, name: str) -> Operation:
        try:
            return self.registry.get(name)
        except UnknownOperation as error:
            raise NotThere(
                f"There is no operation '{name[:64]}'.", code="OPERATION_NOT_FOUND", param="operation"
            ) from error

    def check(self, now: Measured, *, children: int, held: int = 0, parents: int = 1) -> None:
        """Whether so many more fit. `held` are those of the same batch that no wait will make fewer; a batch
        that is there already (`parents` 0) has no cooldown either."""
        limits = self.limits
        most_children = limits.user_pending_children if now.max_children is None else now.max_children
        most_parents = limits.user_pending_parents if now.max_parents is None else now.max_parents
        if not now.exempt and held + children > most_children:
            raise TooLarge(
                f"The batch would have {held + children} children, and at most {most_children} of yours may"
                " be pending at once: no wait will let it in. Make it smaller, or ask for a higher limit.",
                param="items",
            )
        if now.all_parents + parents > limits.max_pending_parents:
            raise _full(
                "global_pending_parents", now.all_parents, limits.max_pending_parents, "batches of all users"
            )
        if now.exempt:
            return
        if parents and now.parents + parents > most_parents:
            raise _full("user_pending_parents", now.parents, most_parents, "of your batches")
        self._check_cooldown(now, parents)
        if now.children + children > most_children:
            raise _full("user_pending_children", now.children, most_children, "children of your batches")

    def _check_cooldown(self, now: Measured, parents: int) -> None:
        cooldown = self.limits.cooldown_seconds if now.cooldown is None else now.cooldown
        if not parents or now.since_last is None or now.since_last >= cooldown:
            return
        left = cooldown - now.since_last
        raise LimitReached(
            "user_cooldown",
            int(now.since_last),
            cooldown,
            left,
            f"There are {cooldown} s between two submissions; try again in {math.ceil(left)} s.",
        )

    async def _replayed(
        self, session: Session, actor: Actor, made: tuple[UUID, bytes], fingerprint: bytes
    ) -> Submitted:
        batch_id, before = made
        if before != fingerprint:
            raise RequestIdReused(
                "This request_id has been used before, for something else.", param="request_id"
            )
        return Submitted(await _there(session, actor, batch_id), replayed=True)

    def _children(
        self, operation: Operation, items: Sequence[Any], custom_ids: Sequence[str] | None, first: int = 1
    ) -> Children:
        if not items:
            raise InvalidSubmission("A batch has at least one item.", param="items")
        if len(items) > operation.largest_batch:
            raise _too_many(operation, len(items))
        try:
            faults = operation.faults(items)
            bodies = tuple(msgspec.json.encode(item).decode() for item in items)
        except (RecursionError, UnicodeError):
            raise InvalidSubmission("An item is nested too deeply or is no Unicode.", param="items") from None
        if faults:
            told = "; ".join(f"{fault.place}: {fault.message}" for fault in faults)
            raise InvalidSubmission(f"Invalid items: {told}", param=faults[0].place)
        names = tuple(custom_ids or (str(n) for n in range(first, first + len(items))))
        if len(names) != len(items):
            raise InvalidSubmission("There are as many custom_ids as items, or none.", param="custom_ids")
        if len(set(names)) != len(names):
            raise InvalidSubmission("Every custom_id is there once.", param="custom_ids")
        if not all(0 < len(name) <= _LONGEST_CUSTOM_ID for name in names):
            raise InvalidSubmission(
                f"A custom_id has 1 to {_LONGEST_CUSTOM_ID} characters.", param="custom_ids"
            )
        return Children(names, bodies)

    def _new(
        self, actor: Actor, operation: Operation, asked: Submission, children: Children, fingerprint: bytes
    ) -> NewOperationBatch:
        needs = any(operation.needs_approval(item) for item in asked.items)
        return NewOperationBatch(
            id=new_id(),
            file_id=new_id(),
            tenant=actor.tenant,
            user_id=actor.user,
            operation=operation.name,
            url=url_of(operation.name),
            request_id=asked.request_id,
            fingerprint=fingerprint,
            reason=_reason(asked.reason),
            approval=Approval.PENDING if needs else Approval.NOT_REQUIRED,
            hold=asked.hold,
            window=self._window,
            window_seconds=window_seconds(self._window),
            settings=RunSettings(max_attempts=operation.max_attempts, timeout=operation.timeout),
            children=children,
        )

    def _submitted(
        self, actor: Actor, operation: Operation, asked: Submission, new: NewOperationBatch
    ) -> Event:
        return Event(
            actor.tenant,
            actor.user,
            "batch.submitted",
            new.id,
            detail={
                "operation": operation.name,
                "child_count": len(asked.items),
                "request_id": None if asked.request_id is None else str(asked.request_id),
                "reason": new.reason,
                "approval": new.approval.value,
                "hold": asked.hold,
                "items": operation.masked(list(asked.items[:_MOST_AUDITED_ITEMS])),
            },
        )

    # --- Decisions -----------------------------------------------------------------------------------------

    async def approve(
        self, session: Session, actor: Actor, batch_id: UUID, reason: str | None = None
    ) -> GovernedBatch:
        """Claim the parent and open its lanes, in one transaction: of two approvers one wins."""
        async with self._deciding(session, actor, batch_id) as changing:
            await self._check_four_eyes(actor, changing)
            await changing.decide(Approval.APPROVED, actor.user, _reason(reason))
            await changing.open()
            await changing.audit(_event(actor, "batch.approved", changing.batch, reason=_reason(reason)))
        return await _there(session, actor, batch_id)

    async def reject(
        self, session: Session, actor: Actor, batch_id: UUID, reason: str | None = None
    ) -> GovernedBatch:
        """None of the children will ever run."""
        async with self._deciding(session, actor, batch_id) as changing:
            await changing.decide(Approval.REJECTED, actor.user, _reason(reason))
            await changing.close("cancel", actor.user)
            await changing.audit(_event(actor, "batch.rejected", changing.batch, reason=_reason(reason)))
        await operations.conclude(session, batch_id)
        return await _there(session, actor, batch_id)

    async def _check_four_eyes(self, actor: Actor, changing: Changing) -> None:
        """Nobody approves his own, neither what he submitted nor what he added to another one's batch."""
        operation = self.registry.find(changing.batch.operation)
        if actor.alone or (operation is not None and operation.self_approval):
            return
        if changing.batch.user_id == actor.user or await changing.appended_by(actor.user):
            raise NotAllowed("Nobody approves what he submitted himself.")

    @asynccontextmanager
    async def _deciding(self, session: Session, actor: Actor, batch_id: UUID) -> AsyncIterator[Changing]:
        batch = await visible(session, actor, batch_id)
        if actor.role is Role.USER:
            raise NotAllowed("Only approvers and admins decide.")
        async with operations.changing(session, actor.tenant, batch.id) as changing:
            now = changing.batch
            if now.approval is not Approval.PENDING:
                why = (
                    f"it was {now.approval.value} by {now.decided_by}"
                    if now.decided_by
                    else "it needs no approval"
                )
                raise WrongState(f"There is nothing to decide: {why}.", code="APPROVAL_NOT_PENDING")
            if _is_closing(now):
                raise WrongState(f"The batch is {_state(now)}.", code="APPROVAL_NOT_PENDING")
            yield changing

    # --- Changes -------------------------------------------------------------------------------------------

    async def cancel(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        """What is in flight finishes, the rest never runs. Again: the same."""
        async with self._changing(session, actor, batch_id) as changing:
            if changing.batch.cancelling_at is None:
                if not await changing.close("cancel", actor.user):
                    raise WrongState(
                        f"The batch cannot be cancelled: it is {_state(changing.batch)}.",
                        code="CANNOT_CANCEL",
                    )
                await changing.audit(_event(actor, "batch.cancelled", changing.batch))
        await operations.conclude(session, batch_id)
        return await _there(session, actor, batch_id)

    async def pause(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        async with self._changing(session, actor, batch_id) as changing:
            if not await changing.close("pause", actor.user):
                raise WrongState(
                    f"The batch cannot be paused: it is {_state(changing.batch)}.", code="CANNOT_PAUSE"
                )
            await changing.audit(_event(actor, "batch.paused", changing.batch))
        return await _there(session, actor, batch_id)

    async def resume(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        """Opens the lanes only if neither an approval nor a release is waited for."""
        async with self._changing(session, actor, batch_id) as changing:
            if not await changing.resume():
                raise WrongState("The batch is not paused.", code="CANNOT_RESUME")
            await changing.audit(_event(actor, "batch.resumed", changing.batch))
        return await _there(session, actor, batch_id)

    async def append(
        self,
        session: Session,
        actor: Actor,
        batch_id: UUID,
        items: Sequence[Any],
        custom_ids: Sequence[str] | None = None,
    ) -> GovernedBatch:
        """More children for a batch that is held. One that needs an approval makes it wait for one."""
        batch = await visible(session, actor, batch_id)
        operation = self.operation(batch.operation)
        self._children(operation, items, custom_ids)
        async with self._changing(session, actor, batch_id, pending_for=batch.user_id) as changing:
            now = changing.batch
            if not now.held or _is_closing(now):
                raise WrongState("Nothing can be appended: the batch is not held.", code="CANNOT_APPEND")
            if now.total + len(items) > operation.largest_batch:
                raise _too_many(operation, now.total + len(items))
            self.check(changing.measured, children=len(items), held=now.total, parents=0)
            children = self._children(operation, items, custom_ids, first=now.total + 1)
            if taken := await changing.taken(children.custom_ids):
                raise InvalidSubmission(
                    f"There is a child {taken[0][:64]!r} in the batch already.", param="custom_ids"
                )
            needs = any(operation.needs_approval(item) for item in items)
            await changing.append(children, needs)
            shown = operation.masked(list(items[:_MOST_AUDITED_ITEMS]))
            await changing.audit(
                _event(
                    actor, "batch.appended", now, child_count=len(items), items=shown, needs_approval=needs
                )
            )
        return await _there(session, actor, batch_id)

    async def release(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        """Nothing more will be appended: run it, once it is approved where it must be. Again: the same."""
        async with self._changing(session, actor, batch_id) as changing:
            now = changing.batch
            if now.held:
                if _is_closing(now):
                    raise WrongState(
                        f"The batch cannot be released: it is {_state(now)}.", code="CANNOT_RELEASE"
                    )
                await changing.release()
                await changing.open()
                await changing.audit(_event(actor, "batch.released", now, child_count=now.total))
            elif now.released_at is None:
                raise WrongState("The batch was not submitted with hold.", code="CANNOT_RELEASE")
        return await _there(session, actor, batch_id)

    async def retry(self, session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
        """Put failed children back that have attempts left. Those that succeeded stay as they are."""
        batch = await visible(session, actor, batch_id)
        operation = self.operation(batch.operation)
        async with self._changing(session, actor, batch_id, pending_for=batch.user_id) as changing:
            now = changing.batch
            _check_retry(now)
            children = await changing.retry(operation.max_attempts, window_seconds(self._window))
            if children == 0:
                raise WrongState(
                    f"All {now.failed} failed children have had their {operation.max_attempts} attempts.",
                    code="RETRY_LIMIT_REACHED",
                )
            self._check_retried(changing.measured, children)
            await changing.audit(_event(actor, "batch.retried", now, child_count=children))
        return await _there(session, actor, batch_id)

    def _check_retried(self, now: Measured, children: int) -> None:
        """A batch that runs again is pending as any other, but nothing new: so without cooldown."""
        self.check(msgspec.structs.replace(now, since_last=None), children=children)

    @asynccontextmanager
    async def _changing(
        self, session: Session, actor: Actor, batch_id: UUID, *, pending_for: str | None = None
    ) -> AsyncIterator[Changing]:
        """Of the caller's own batch, or of any of the tenant's for an admin."""
        batch = await visible(session, actor, batch_id)
        if batch.user_id != actor.user and actor.role is not Role.ADMIN:
            raise NotAllowed("Only its user and admins may do this with a batch.")
        async with operations.changing(session, actor.tenant, batch_id, pending_for=pending_for) as changing:
            yield changing


# --- Reading -----------------------------------------------------------------------------------------------


async def visible(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    """A batch as the caller may see it: his own, or any of the tenant's for approvers and admins."""
    batch = await operations.get(session, actor.tenant, batch_id)
    if batch is None or (actor.role is Role.USER and batch.user_id != actor.user):
        raise NotThere("No such batch.", param="batch_id")
    return batch


async def page(
    session: Session,
    actor: Actor,
    *,
    limit: int,
    operation: str | None = None,
    approval: Approval | None = None,
    after: UUID | None = None,
) -> list[GovernedBatch]:
    user = actor.user if actor.role is Role.USER else None
    return await operations.page(
        session, actor.tenant, limit=limit, user=user, operation=operation, approval=approval, after=after
    )


async def children(session: Session, batch: GovernedBatch, *, after: int, limit: int) -> list[Child]:
    return await operations.children(session, batch.id, after=after, limit=limit)


async def _there(session: Session, actor: Actor, batch_id: UUID) -> GovernedBatch:
    batch = await operations.get(session, actor.tenant, batch_id)
    if batch is None:
        raise OperationBatchNotFound(f"no governed batch {batch_id}")
    return batch


class _MadeMeanwhile(Exception):
    """Another one was quicker with the same request_id."""

    def __init__(self, made: tuple[UUID, bytes]) -> None:
        super().__init__("made before")
        self.made = made


def _fingerprint(asked: Submission) -> bytes:
    try:
        return asked.fingerprint()
    except (RecursionError, UnicodeError):
        raise InvalidSubmission("An item is nested too deeply or is no Unicode.", param="items") from None


def _check_retry(now: GovernedBatch) -> None:
    if now.counts.pending:
        if now.retries:
            raise WrongState("A retry is under way.", code="RETRY_IN_PROGRESS")
        raise WrongState("The batch is still in progress.", code="BATCH_IN_PROGRESS")
    if now.cancelling_at is not None or now.expiring_at is not None:
        raise WrongState(f"The batch is {_state(now)}: nothing of it runs again.", code="BATCH_CANCELLED")
    if now.purging_at is not None:
        raise WrongState(
            f"The batch ended long ago: its children were cleared away on {now.purging_at:%Y-%m-%d}.",
            code="BATCH_CLEARED",
        )
    if now.failed == 0:
        raise WrongState("No child has failed.", code="NOTHING_TO_RETRY")
    if now.ended_at is None:
        raise WrongState("The batch is writing its files; try again in a second.", code="BATCH_FINALIZING")


def _is_closing(batch: GovernedBatch) -> bool:
    return any((batch.finalizing_at, batch.cancelling_at, batch.expiring_at))


def _state(batch: GovernedBatch) -> str:
    """In words, for a person who wonders why not."""
    if batch.cancelling_at is not None:
        return "cancelled"
    if batch.expiring_at is not None:
        return "past its deadline"
    if batch.finalizing_at is not None:
        return "over"
    return "paused already" if batch.paused_at is not None else "in progress"


def _full(limit_type: str, current: int, most: int, what: str) -> LimitReached:
    return LimitReached(
        limit_type, current, most, _WAIT, f"Too much is pending: {current} {what}, of at most {most}."
    )


def _too_many(operation: Operation, items: int) -> TooLarge:
    return TooLarge(
        f"The batch would have {items} items; {operation.name} takes at most {operation.largest_batch}.",
        param="items",
    )


def _reason(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > _MOST_REASON:
        raise InvalidSubmission(f"A reason has at most {_MOST_REASON} characters.", param="reason")
    return masked_text(text)


def _event(actor: Actor, action: str, batch: GovernedBatch, **detail: Any) -> Event:
    return Event(
        actor.tenant,
        actor.user,
        action,
        batch.id,
        subject=batch.user_id,
        detail={"operation": batch.operation, **detail},
    )
