"""Keys of items that may be submitted once."""

from collections.abc import AsyncGenerator, AsyncIterable

from batchline.app.item_blocks import ItemBlock
from batchline.operations.errors import DuplicateKey
from batchline.store import feeding
from batchline.store.session import Session


class UniqueKeys:
    """The keys of one operation. They are taken in the transaction of the session."""

    def __init__(self, session: Session, tenant: str, operation: str, file_no: int) -> None:
        self._session = session
        self._tenant = tenant
        self._operation = operation
        self._file_no = file_no
        # Items whose keys were taken before.
        self.skipped = 0

    async def free(self, blocks: AsyncIterable[ItemBlock], *, skip: bool) -> AsyncGenerator[ItemBlock, None]:
        """The items whose keys are free, of equal keys the first. Raises DuplicateKey unless `skip`."""
        start = 0
        locked = False
        async for block in blocks:
            if not locked:
                await feeding.lock_keys(self._session, self._tenant, self._operation)
                locked = True
            keys = block.keys or ()
            free = await feeding.take_keys(self._session, self._tenant, self._operation, self._file_no, keys)
            positions = []
            for position, key in enumerate(keys):
                if key in free:
                    free.discard(key)
                    positions.append(position)
                elif not skip:
                    raise DuplicateKey(key.decode(), block.start + position)
            self.skipped += len(block) - len(positions)
            bodies = [block.bodies[position] for position in positions]
            if bodies:
                yield ItemBlock(start, [keys[each] for each in positions], bodies, sum(map(len, bodies)))
            start += len(bodies)
