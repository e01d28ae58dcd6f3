"""Creation that can be repeated safely: a key of the caller's choosing stands for what it has made."""

from uuid import UUID

import msgspec

from batchline.store.session import Connection, run
from batchline.store.statements import statement


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A caller's key, what it is used for, and a hash of all that was asked for."""

    tenant: str
    scope: str
    key: str
    fingerprint: bytes


class IdempotencyConflict(Exception):
    """The key stands for something already."""

    def __init__(self, object_id: UUID, same: bool) -> None:
        what = "this" if same else "something else"
        super().__init__(f"the key has been used for {what} before")
        self.object_id = object_id
        # Whether the same was asked for then.
        self.same = same

    def __reduce__(self) -> tuple[type["IdempotencyConflict"], tuple[UUID, bool]]:
        return IdempotencyConflict, (self.object_id, self.same)


async def remember(connection: Connection, idempotency_key: IdempotencyKey, object_id: UUID) -> None:
    """In the transaction that makes the object; waits for another one that uses the key right now."""
    params = {**msgspec.structs.asdict(idempotency_key), "object": object_id}
    while not await run(connection, statement("remember_made"), params):
        # None: it has been forgotten since.
        for made, fingerprint in await run(connection, statement("find_made"), params):
            raise IdempotencyConflict(made, fingerprint == idempotency_key.fingerprint)
