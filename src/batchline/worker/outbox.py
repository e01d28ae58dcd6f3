"""Delivers events: turns each into deliveries to webhooks and hooks, and sends the webhooks' messages.

An event becomes one delivery per subscribed webhook and per hook, in the database, before anything is sent.
Any worker does that. The deliveries to a hook are left to a worker that has the hook (`hooks`). A webhook is
taken under a lease, so it is sent one message at a time, whichever worker does it. A message that a killed
worker was sending is sent again, under the same id, when the lease ends. The outbox has its own session and
tasks: a slow receiver delays neither maintenance nor other receivers.
"""

import asyncio
import random
from collections.abc import Callable

import structlog

from batchline.store import hooks, maintenance, webhooks
from batchline.store.session import Session, StoreUnavailable
from batchline.store.webhooks import DeliveryAttempt, Taken
from batchline.upstreams.retry import Backoff
from batchline.webhooks.sender import Sender, Sent
from batchline.worker.service import Service
from batchline.worker.tasks import cancel_all

# Longer than a look-up and a request together may take.
LEASE = 30.0
ABANDON_AFTER = 24 * 3600.0
_AT_ONCE = 8
# A refused message is sent again, after longer and longer delays. A receiver that refuses all of them is
# called less and less often, so that its many messages cost no more than one.
_RETRY = Backoff(minimum=5.0, maximum=3600.0)
_REST = Backoff(minimum=2.0, maximum=600.0)
# Retries that come due sooner than this are not left to a poll.
_SOON = 60.0

_log = structlog.get_logger("batchline.outbox")


class Outbox(Service):
    """Idle while it delivers nothing. A delivery that waits for its next try does not count.

    `on_hooks` is called when there are new deliveries to hooks.
    """

    name = "outbox"

    def __init__(self, session: Session, sender: Sender, on_hooks: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._session = session
        self._sender = sender
        self._on_hooks = on_hooks
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            await cancel_all(list(self._sending))

    @property
    def _busy(self) -> bool:
        return bool(self._sending)

    async def _work(self) -> None:
        try:
            await self._deliver_events()
            await self._send_due()
        except StoreUnavailable as error:
            # The next poll wakes it again.
            _log.warning("cannot deliver events", reason=str(error))

    async def _deliver_events(self) -> None:
        while (event := await maintenance.take_event(self._session)) is not None:
            # To fan out twice does no harm.
            await webhooks.fan_out(self._session, event.id)
            created = await hooks.fan_out(self._session, event.id)
            await maintenance.event_delivered(self._session, event.id)
            if created and self._on_hooks is not None:
                self._on_hooks()

    async def _send_due(self) -> None:
        while len(self._sending) < _AT_ONCE:
            taken = await webhooks.take(self._session, lease=LEASE)
            if taken is None:
                return
            task = asyncio.create_task(self._deliver(taken))
            self._sending.add(task)
            task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        # There may be another message for the same webhook, or one that found no free task before.
        self.wake()

    async def _deliver(self, taken: Taken) -> None:
        sent = await self._send(taken)
        delay = rest = 0.0
        if taken.message is not None and not sent.attempt.delivered:
            delay = max(_RETRY.delay(taken.message.attempts, random.random), sent.requested)
            rest = max(_REST.delay(taken.failures + 1, random.random), sent.requested)
        try:
            given_up = await webhooks.settle(
                self._session, taken, sent.attempt, delay=delay, rest=rest, abandon=ABANDON_AFTER
            )
        except StoreUnavailable as error:
            # The lease ends by itself, and the message is sent again.
            _log.warning("cannot record a delivery", webhook=str(taken.webhook_id), reason=str(error))
            return
        if given_up:
            _log.warning("delivery given up", webhook=str(taken.webhook_id), reason=sent.attempt.error)
        elif (soonest := max(delay, rest)) and soonest < _SOON:
            asyncio.get_running_loop().call_later(soonest + 0.005, self.wake)

    async def _send(self, taken: Taken) -> Sent:
        if taken.message is None:
            return Sent(DeliveryAttempt(delivered=False))
        secrets = [taken.secret, *([taken.previous_secret] if taken.previous_secret else [])]
        try:
            return await self._sender.send(taken.url, taken.message, secrets)
        except Exception:  # noqa: BLE001
            # One message's unexpected error must not affect the others.
            _log.exception("delivery failed unexpectedly", webhook=str(taken.webhook_id))
            return Sent(
                DeliveryAttempt(delivered=False, error="the worker failed at this delivery; see its log")
            )
