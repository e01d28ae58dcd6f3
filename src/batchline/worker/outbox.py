"""Tells the outside of events: listeners at once, webhooks each in its own time.

An event becomes a delivery for each webhook that asked for it, in the database, before anything is sent. A
webhook is taken under a lease, so it is sent one message at a time, whichever worker does it, and what a
killed worker was sending is sent again, under the same id, when the lease is over. All of this is on a
session and in tasks of its own: a slow receiver holds up neither maintenance nor other receivers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import structlog

from batchline.store import maintenance, webhooks
from batchline.store.maintenance import OutboxEvent
from batchline.store.session import Session, StoreUnavailable
from batchline.store.webhooks import Attempt, Taken
from batchline.upstreams.retry import Backoff
from batchline.webhooks.sender import Sender, Sent

EventListener = Callable[[OutboxEvent], Awaitable[None]]

# Longer than a look-up and a request together may take.
LEASE = 30.0
ABANDON_AFTER = 24 * 3600.0
_AT_ONCE = 8
# A message that is refused comes again, later and later; a receiver that refuses all of them is asked
# less and less often, so that its many messages cost no more than one.
_RETRY = Backoff(minimum=5.0, maximum=3600.0)
_REST = Backoff(minimum=2.0, maximum=600.0)
# Retries that come due sooner than this are not left to a poll.
_SOON = 60.0

_log = structlog.get_logger("batchline.outbox")


class Outbox:
    def __init__(self, session: Session, sender: Sender, listeners: Sequence[EventListener] = ()) -> None:
        self._session = session
        self._sender = sender
        self._listeners = listeners
        self._called = asyncio.Event()
        self._working = False
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return self._working or self._called.is_set() or bool(self._sending)

    def call(self) -> None:
        """There may be an event to tell of, or a delivery to send."""
        self._called.set()

    async def run(self) -> None:
        try:
            while True:
                await self._called.wait()
                self._working = True
                self._called.clear()
                try:
                    await self._tell_events()
                    await self._send_due()
                except StoreUnavailable as error:
                    # A poll brings us back.
                    _log.warning("cannot tell of events", reason=str(error))
                finally:
                    self._working = False
        finally:
            sending = list(self._sending)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _tell_events(self) -> None:
        while (event := await maintenance.take_event(self._session)) is not None:
            # First the webhooks, whom nobody's failure concerns; to fan out twice does no harm.
            await webhooks.fan_out(self._session, event.id)
            if await self._listened(event):
                await maintenance.event_delivered(self._session, event.id)

    async def _listened(self, event: OutboxEvent) -> bool:
        """Tell every listener; an event that one of them refused comes again, for all of them."""
        for listener in self._listeners:
            try:
                await listener(event)
            except Exception:  # noqa: BLE001
                # A listener is foreign code, and its failure must change nothing but its own delivery.
                _log.exception("listener failed", event_type=event.type, batch=str(event.batch_id))
                return False
        return True

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
        # There may be another message for the same webhook, or one that found no place before.
        self.call()

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
            _log.warning("cannot write down a delivery", webhook=str(taken.webhook_id), reason=str(error))
            return
        if given_up:
            _log.warning("delivery given up", webhook=str(taken.webhook_id), reason=sent.attempt.error)
        elif (soonest := max(delay, rest)) and soonest < _SOON:
            asyncio.get_running_loop().call_later(soonest + 0.005, self.call)

    async def _send(self, taken: Taken) -> Sent:
        if taken.message is None:
            return Sent(Attempt(delivered=False))
        secrets = [taken.secret, *([taken.previous_secret] if taken.previous_secret else [])]
        try:
            return await self._sender.send(taken.url, taken.message, secrets)
        except Exception:  # noqa: BLE001
            # One message's surprise must not touch the others.
            _log.exception("delivery failed unexpectedly", webhook=str(taken.webhook_id))
            return Sent(
                Attempt(delivered=False, error="the worker failed at this delivery; its log says why")
            )
