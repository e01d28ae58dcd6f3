"""Runs this worker's hooks: takes deliveries that are due, runs each in a process, records the outcome.

Only deliveries to hooks that this worker has are taken. Each is leased, so of two workers with the same hook
one delivers it; if that one dies, the other delivers it again when the lease ends. A hook that hangs delays
no other hook and nothing else.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import structlog

from batchline.hooks.delivery import Delivered, deliver, lease
from batchline.hooks.hook import Hooks
from batchline.model.ids import BATCH, show
from batchline.store import hooks
from batchline.store.hooks import TakenHook
from batchline.store.session import Session, StoreUnavailable
from batchline.worker.service import Service
from batchline.worker.tasks import cancel_all

# Of one hook, at once.
_AT_ONCE = 2
# Retries that come due sooner than this are not left to a poll.
_SOON = 60.0
# A hook is forgotten when no worker has registered it for days.
_REGISTER_EVERY = 3600.0

_log = structlog.get_logger("batchline.hooks")


@dataclass(slots=True)
class _Running:
    """The deliveries under way."""

    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


class HookRunner(Service):
    """Idle while no hook runs. A delivery that waits for its next try does not count."""

    name = "hooks"

    def __init__(self, session: Session, known: Hooks) -> None:
        super().__init__()
        self._session = session
        self._hooks = known
        self._running = _Running()
        self._registered_at: float | None = None
        self._stopping = False

    async def register(self) -> None:
        """Tell the database which hooks there are, so that events become deliveries to them."""
        if self._hooks.names:
            await hooks.register(self._session, self._hooks.names)
            loop = asyncio.get_running_loop()
            self._registered_at = loop.time()
            loop.call_later(_REGISTER_EVERY, self.wake)

    def stop(self) -> None:
        # Deliveries wait for the next worker that has these hooks.
        self._stopping = True

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await cancel_all(list(self._running.tasks))

    @property
    def _busy(self) -> bool:
        return bool(self._running.tasks)

    async def _work(self) -> None:
        if not self._hooks.names:
            return
        try:
            if self._registration_is_old:
                await self.register()
            await self._start_due()
        except StoreUnavailable as error:
            # The next poll wakes it again.
            _log.warning("cannot look for deliveries to hooks", reason=str(error))

    @property
    def _registration_is_old(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._registered_at is None or now - self._registered_at >= _REGISTER_EVERY

    async def _start_due(self) -> None:
        while not self._stopping:
            free = [name for name in self._hooks.names if self._running.counts[name] < _AT_ONCE]
            taken = await hooks.take(self._session, free, lease=lease(self._hooks)) if free else None
            if taken is None:
                return
            self._start(taken)

    def _start(self, taken: TakenHook) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            self._running.tasks.discard(task)
            self._running.counts[taken.hook] -= 1
            # There may be another delivery to the same hook.
            self.wake()

        task = asyncio.create_task(self._deliver(taken))
        self._running.tasks.add(task)
        self._running.counts[taken.hook] += 1
        task.add_done_callback(ended)

    async def _deliver(self, taken: TakenHook) -> None:
        try:
            delivered = await deliver(self._session, self._hooks, taken)
        except Exception as error:  # noqa: BLE001
            # Whatever is wrong with one delivery must not affect the others. It is due again after its lease.
            _log.error(
                "cannot deliver to a hook",
                hook=taken.hook,
                batch=show(BATCH, taken.batch_id),
                reason=str(error),
                exc_info=None if isinstance(error, StoreUnavailable) else error,
            )
            return
        if not delivered.outcome.delivered:
            self._failed(taken, delivered)

    def _failed(self, taken: TakenHook, delivered: Delivered) -> None:
        _log.warning(
            "hook abandoned" if delivered.abandoned else "hook failed",
            hook=taken.hook,
            batch=show(BATCH, taken.batch_id),
            reason=delivered.outcome.error,
            again_in=None if delivered.abandoned else round(delivered.delay, 1),
        )
        if not delivered.abandoned and delivered.delay < _SOON:
            asyncio.get_running_loop().call_later(delivered.delay + 0.005, self.wake)
