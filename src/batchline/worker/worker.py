"""One asyncio process that finishes lines: claim, dispatch, settle; heartbeat, listener, maintenance.

Life: `run` until `stop` is called (twice: at once), until it is drained, or until its time is up. What was
claimed and not sent is given back; what was sent is waited for, or released to be sent again under the
same idempotency key.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Executor
from batchline.files.objects import Objects
from batchline.model import Batch, Settled
from batchline.store import batches, spans
from batchline.store.address import in_schema_of
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.slots import Slots
from batchline.webhooks.sender import Sender
from batchline.worker import local_workers
from batchline.worker.claimer import Claimer
from batchline.worker.clock import Clock, steady
from batchline.worker.finalizer import Finalizer
from batchline.worker.heartbeat import Heartbeat
from batchline.worker.lease import Lease
from batchline.worker.listener import Listener
from batchline.worker.notification_router import NotificationRouter
from batchline.worker.outbox import EventListener, Outbox
from batchline.worker.poller import Poller
from batchline.worker.producer import Producer, ProducerScope
from batchline.worker.producers import Producers, UpstreamFinder
from batchline.worker.reconciler import Reconciler
from batchline.worker.retry_timer import RetryTimer
from batchline.worker.settler import Settler
from batchline.worker.supervisor import Services, first_failure
from batchline.worker.tasks import cancel_all, first

_log = structlog.get_logger("batchline.worker")


class Worker:
    """Works on its `scope` with one producer; or with one producer for each of the `scopes`, and one for each
    upstream in the scope of `upstreams` while that upstream has work.

    `listen_url` is the database's own address, where `url` is a pooler's.
    """

    def __init__(
        self,
        url: str,
        executor: Executor,
        objects: Objects,
        settings: WorkerSettings,
        scope: Scope,
        *,
        scopes: Sequence[ProducerScope] = (),
        upstreams: ProducerScope | None = None,
        memory: BodyMemory | None = None,
        listeners: Sequence[EventListener] = (),
        on_ended: Callable[[Batch], None] | None = None,
        clock: Clock = steady,
        listen_url: str | None = None,
    ) -> None:
        self._settings = settings
        self._on_ended = on_ended
        self._executor = executor
        self._sessions = {name: Session(url, name) for name in ("claim", "settle", "renew", "attend", "tell")}
        self.lease = Lease(settings, clock, self._let_go)
        executor.fenced_by(self.lease.sender)
        self._memory = memory or BodyMemory(settings.body_memory, settings.concurrency)
        self.settler = Settler(self._sessions["settle"], self.lease, settings, self._memory, self._settled)
        claim_lock = asyncio.Lock()
        self._reconciler = Reconciler(
            self._sessions["claim"], self.lease, self._known_spans, claim_lock, self._look_for_work
        )
        self._clock = clock
        self._claim_lock = claim_lock
        scopes = scopes or [ProducerScope(scope, settings.concurrency)]
        # Each producer may hold a share of the bytes for requests, and all of them no more than there are.
        shares = len(scopes) + (upstreams is not None)
        self._max_request_bytes = self._memory.for_requests // shares
        self.producers = Producers(
            [
                self._new_producer(producer_scope.scope, Slots(producer_scope.concurrency))
                for producer_scope in scopes
            ]
        )
        if upstreams is not None:
            self.producers.finder = self._new_finder(
                UpstreamFinder(upstreams, self.producers, self._new_producer)
            )
        self.finalizer = Finalizer(url, self.lease, scope, objects, self._ended)
        sender = Sender(allow_private=settings.allow_private_webhooks)
        self.outbox = Outbox(self._sessions["tell"], sender, listeners)
        self.poller = self._new_poller(scope, objects)
        self._heartbeat = Heartbeat(self._sessions["renew"], self.lease, settings, self._holding)
        router = NotificationRouter(self.producers, self.poller, self.outbox)
        self._listener = Listener(in_schema_of(listen_url or url, url), router.heard)
        self._retries = RetryTimer(self._retry_due)
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()

    def _new_producer(
        self, scope: Scope, slots: Slots, on_idle: Callable[[Producer], None] | None = None
    ) -> Producer:
        return Producer(
            scope,
            slots,
            self._sessions["claim"],
            self._executor,
            self.settler,
            self.lease,
            self._settings,
            self._clock,
            self._claim_lock,
            self._reconciler,
            self._memory,
            self._max_request_bytes,
            on_idle,
        )

    def _new_finder(self, finder: UpstreamFinder) -> Claimer:
        return Claimer(
            self._sessions["claim"],
            self.lease,
            finder.scope,
            finder,
            self._claim_lock,
            self._reconciler,
            self.settler.add,
        )

    def _new_poller(self, scope: Scope, objects: Objects) -> Poller:
        return Poller(
            self._sessions["attend"],
            self.lease,
            scope,
            self._settings,
            objects,
            self.producers,
            self.finalizer,
            self.outbox,
        )

    @property
    def claimed(self) -> int:
        """Items, since it began."""
        return self.producers.claimed

    @property
    def aborting(self) -> asyncio.Event:
        """Set once the worker waits for nothing any more: it must have ended soon after."""
        return self._abort

    def stop(self) -> None:
        """First call: finish what was sent, then leave. Second call: release it and leave now."""
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()

    async def run(self) -> None:
        """Raises ServiceFailed when a part of the worker keeps failing."""
        try:
            await self._arrive()
            await self._run_services()
            await self._leave()
        except ExceptionGroup as group:
            # What is held goes to others when the lease ends.
            if (failed := first_failure(group)) is None:
                raise
            raise failed from group
        finally:
            self._retries.cancel()
            for session in self._sessions.values():
                await session.close()

    async def _run_services(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            services = Services(tasks, self._abort.set)
            # Runners that failed leave requests without a verdict: others take over the old name's spans.
            self.producers.start(services, self.lease.abandon, self._reconciler.reconcile)
            settling = services.start("settler", self.settler.run)
            heartbeat = services.start("heartbeat", self._heartbeat.run)
            finalizing = services.start("finalizer", self.finalizer.run)
            telling = services.start("outbox", self.outbox.run)
            seekers = [
                services.start("reconciler", self._reconciler.run),
                services.start("poller", self.poller.run),
                services.start("listener", self._listener.run),
            ]
            await self._until_reported(services)
            await cancel_all(seekers)
            await self.producers.stop_claiming()
            await self._finish(self.producers.dispatching, settling)
            await self._finish_finalizing(finalizing)
            await self._finish_telling(telling)
            await cancel_all([heartbeat])

    async def _arrive(self) -> None:
        try:
            if expired_workers := await local_workers.expire_dead_local_workers(self._sessions["claim"]):
                _log.info("leases of dead processes ended", workers=expired_workers)
        except StoreUnavailable as error:
            _log.warning("cannot look for dead processes", reason=str(error))

    async def _until_reported(self, services: Services) -> None:
        try:
            async with asyncio.timeout(self._settings.max_seconds):
                if self._settings.drain:
                    await services.supervise("drain", self._until_drained)
                else:
                    await self._stop.wait()
        except TimeoutError:
            _log.info("time is up", seconds=self._settings.max_seconds)
            # What is in flight may still finish, but not for ever: somebody counts on this time.
            asyncio.get_running_loop().call_later(self._settings.grace, self._abort.set)

    async def _until_drained(self) -> None:
        """Until nothing is left that this worker could do now or is waiting to do again."""
        while not self._stop.is_set():
            if self._busy() or await self.poller.sees_work():
                await first(self._stop.wait(), asyncio.sleep(0.02))
            else:
                return

    async def _finish(self, running: Sequence[asyncio.Task[None]], settling: asyncio.Task[None]) -> None:
        """Give back what was not sent, wait for what was, settle all of it."""
        for producer in self.producers:
            producer.give_back()
            producer.buffer.close()
        self._executor.wind_down()
        await first(asyncio.wait(running), self._abort.wait())
        if not all(task.done() for task in running):
            await cancel_all(running)
        self.settler.close()
        # A database that stays away keeps no worker from leaving: what it knows is then run again by others.
        asyncio.get_running_loop().call_later(self._settings.stop_patience, self._abort.set)
        await first(asyncio.wait([settling]), self._abort.wait())
        if not settling.done():
            await cancel_all([settling])

    async def _finish_finalizing(self, finalizing: asyncio.Task[None]) -> None:
        """A finalizer at work may end it; at once when told twice."""
        while self.finalizer.busy and not self._abort.is_set():
            await first(self._abort.wait(), asyncio.sleep(0.02))
        await cancel_all([finalizing])

    async def _finish_telling(self, telling: asyncio.Task[None]) -> None:
        """What is being sent may arrive, but a slow receiver keeps nobody from leaving for long."""
        grace = asyncio.get_running_loop().time() + self._settings.grace
        while self.outbox.busy and not self._abort.is_set() and asyncio.get_running_loop().time() < grace:
            await first(self._abort.wait(), asyncio.sleep(0.02))
        await cancel_all([telling])

    async def _leave(self) -> None:
        """Free whatever is still held under this name, and take the name off the list."""
        session = self._sessions["settle"]
        try:
            for batch_id in await spans.release(session, self.lease.worker.id):
                await batches.conclude(session, batch_id)
            await spans.leave(session, self.lease.worker.id)
        except StoreUnavailable as error:
            _log.warning("left without releasing; the lease will end by itself", reason=str(error))

    def _known_spans(self) -> set[int]:
        return self.settler.spans().union(*(producer.spans() for producer in self.producers))

    def _let_go(self) -> int:
        """Drop what was claimed under a name that is lost: not only what the producer had that noticed."""
        return sum(len(producer.buffer.discard()) for producer in self.producers)

    def _holding(self) -> bool:
        return bool(
            any(producer.holding for producer in self.producers)
            or self.settler.unsettled
            or self.finalizer.busy
        )

    def _busy(self) -> bool:
        """Something is held, may be claimable, or waits here for another try."""
        return (
            self._holding()
            or any(claimer.busy for claimer in self.producers.claimers)
            or self._reconciler.busy
            or self._retries.waiting
            or self.finalizer.waiting
            or self.outbox.busy
        )

    def _settled(self, settled: Sequence[Settled], earliest_retry: float | None) -> None:
        if any(row.finished for row in settled):
            self.finalizer.call()
        if any(row.closing for row in settled):
            self.poller.call()
        if earliest_retry is not None:
            self._retries.expect(earliest_retry)

    def _retry_due(self) -> None:
        self._look_for_work()
        # There may be later ones; the poll knows when.
        self.poller.call()

    def _ended(self, batch: Batch) -> None:
        self.outbox.call()
        if self._on_ended is not None:
            self._on_ended(batch)

    def _look_for_work(self) -> None:
        for claimer in self.producers.claimers:
            claimer.work_available.set()
