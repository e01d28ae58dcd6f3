"""Idempotency keys: a caller's key identifies the object that it created, so a request can be repeated."""

from uuid import UUID

import msgspec

from batchline.store.session import StoreConnection, run
from batchline.store.statements import statement


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A caller's key, what it is used for, and a hash of the whole request."""

    tenant: str
    scope: str
    key: str
    fingerprint: bytes


class IdempotencyConflict(Exception):
    """The key has already been used."""

    def __init__(self, object_id: UUID, same: bool) -> None:
        what = "the same request" if same else "a different request"
        super().__init__(f"the idempotency key was already used for {what}")
        self.object_id = object_id
        # Whether the earlier request was the same.
        self.same = same

    def __reduce__(self) -> tuple[type["IdempotencyConflict"], tuple[UUID, bool]]:
        return IdempotencyConflict, (self.object_id, self.same)


async def remember(connection: StoreConnection, idempotency_key: IdempotencyKey, object_id: UUID) -> None:
    """Record the key, in the transaction that creates the object. Waits for a concurrent use of the key."""
    params = {**msgspec.structs.asdict(idempotency_key), "object": object_id}
    while not await run(connection, statement("record_idempotency_key"), params):
        # No row: the key was deleted in between, so try again.
        for made, fingerprint in await run(connection, statement("find_idempotency_key"), params):
            raise IdempotencyConflict(made, fingerprint == idempotency_key.fingerprint)
