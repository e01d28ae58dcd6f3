"""One asyncio process that finishes lines: claim, dispatch, settle; heartbeat, listener, duties beside it.

Life: `run` until `stop` is called (twice: at once), until it is drained, or until its time is up. What was
claimed and not sent is given back; what was sent is waited for, or released to be sent again under the
same idempotency key.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from batchline.config import WorkerSettings
from batchline.engine.objects import Objects
from batchline.executors.executor import Executor
from batchline.executors.memory import BodyMemory
from batchline.executors.webhooks import Sender
from batchline.model import Batch, Settled
from batchline.store import batches, spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker import kin
from batchline.worker.attendant import Attendant
from batchline.worker.claimer import Claimer
from batchline.worker.clock import Clock, steady
from batchline.worker.crew import Crew, Post
from batchline.worker.finalizer import Finalizer
from batchline.worker.heartbeat import Heartbeat
from batchline.worker.lease import Lease
from batchline.worker.listener import Listener
from batchline.worker.messenger import EventListener, Messenger
from batchline.worker.producers import Producers, UpstreamFinder
from batchline.worker.retry_timer import RetryTimer
from batchline.worker.settler import Settler
from batchline.worker.slots import Slots
from batchline.worker.strays import Strays
from batchline.worker.supervisor import Services, first_failure
from batchline.worker.switchboard import Switchboard
from batchline.worker.tasks import first, send_home

_log = structlog.get_logger("batchline.worker")


class Worker:
    """Works on all in its `scope`, with one crew; or with one at each of the `posts`, which share it out, and
    one for each upstream in the scope of `upstreams`, while it has work.

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
        posts: Sequence[Post] = (),
        upstreams: Post | None = None,
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
        turn = asyncio.Lock()
        self._strays = Strays(
            self._sessions["claim"], self.lease, self._known_spans, turn, self._look_for_work
        )
        self._clock = clock
        self._turn = turn
        posts = posts or [Post(scope, settings.concurrency)]
        # Each producer may hold a share of the bytes for requests, and all of them no more than there are.
        shares = len(posts) + (upstreams is not None)
        self._max_request_bytes = self._memory.for_requests // shares
        self.crews = Producers([self._new_crew(post.scope, Slots(post.concurrency)) for post in posts])
        if upstreams is not None:
            self.crews.finder = self._new_finder(UpstreamFinder(upstreams, self.crews, self._new_crew))
        self.finalizer = Finalizer(url, self.lease, scope, objects, self._ended)
        sender = Sender(allow_private=settings.allow_private_webhooks)
        self.messenger = Messenger(self._sessions["tell"], sender, listeners)
        self.attendant = self._new_attendant(scope, objects)
        self._heartbeat = Heartbeat(self._sessions["renew"], self.lease, settings, self._holding)
        switchboard = Switchboard(self.crews, self.attendant, self.messenger)
        self._listener = Listener(listen_url or url, switchboard.heard)
        self._retries = RetryTimer(self._retry_due)
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()

    def _new_crew(self, scope: Scope, slots: Slots, on_idle: Callable[[Crew], None] | None = None) -> Crew:
        return Crew(
            scope,
            slots,
            self._sessions["claim"],
            self._executor,
            self.settler,
            self.lease,
            self._settings,
            self._clock,
            self._turn,
            self._strays,
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
            self._turn,
            self._strays,
            self.settler.add,
        )

    def _new_attendant(self, scope: Scope, objects: Objects) -> Attendant:
        return Attendant(
            self._sessions["attend"],
            self.lease,
            scope,
            self._settings,
            objects,
            self.crews,
            self.finalizer,
            self.messenger,
        )

    @property
    def claimed(self) -> int:
        """Items, since it began."""
        return self.crews.claimed

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
            self.crews.start(services, self.lease.give_up, self._strays.lost_track)
            settling = services.start("settler", self.settler.run)
            heartbeat = services.start("heartbeat", self._heartbeat.run)
            finalizing = services.start("finalizer", self.finalizer.run)
            telling = services.start("messenger", self.messenger.run)
            seekers = [
                services.start("strays", self._strays.run),
                services.start("attendant", self.attendant.run),
                services.start("listener", self._listener.run),
            ]
            await self._until_told(services)
            await send_home(seekers)
            await self.crews.stop_claiming()
            await self._finish(self.crews.dispatching, settling)
            await self._finish_finalizing(finalizing)
            await self._finish_telling(telling)
            await send_home([heartbeat])

    async def _arrive(self) -> None:
        try:
            if buried := await kin.bury_the_dead(self._sessions["claim"]):
                _log.info("leases of dead processes ended", workers=buried)
        except StoreUnavailable as error:
            _log.warning("cannot look for dead processes", reason=str(error))

    async def _until_told(self, services: Services) -> None:
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
            if self._busy() or await self.attendant.sees_work():
                await first(self._stop.wait(), asyncio.sleep(0.02))
            else:
                return

    async def _finish(self, running: Sequence[asyncio.Task[None]], settling: asyncio.Task[None]) -> None:
        """Give back what was not sent, wait for what was, settle all of it."""
        for crew in self.crews:
            crew.give_back()
            crew.buffer.close()
        self._executor.wind_down()
        await first(asyncio.wait(running), self._abort.wait())
        if not all(task.done() for task in running):
            await send_home(running)
        self.settler.close()
        # A database that stays away keeps no worker from leaving: what it knows is then run again by others.
        asyncio.get_running_loop().call_later(self._settings.stop_patience, self._abort.set)
        await first(asyncio.wait([settling]), self._abort.wait())
        if not settling.done():
            await send_home([settling])

    async def _finish_finalizing(self, finalizing: asyncio.Task[None]) -> None:
        """A finalizer at work may end it; at once when told twice."""
        while self.finalizer.busy and not self._abort.is_set():
            await first(self._abort.wait(), asyncio.sleep(0.02))
        await send_home([finalizing])

    async def _finish_telling(self, telling: asyncio.Task[None]) -> None:
        """What is being sent may arrive, but a slow receiver keeps nobody from leaving for long."""
        grace = asyncio.get_running_loop().time() + self._settings.grace
        while self.messenger.busy and not self._abort.is_set() and asyncio.get_running_loop().time() < grace:
            await first(self._abort.wait(), asyncio.sleep(0.02))
        await send_home([telling])

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
        return self.settler.spans().union(*(crew.spans() for crew in self.crews))

    def _let_go(self) -> int:
        """Drop what was claimed under a name that is lost: not only what the crew had that noticed."""
        return sum(len(crew.buffer.discard()) for crew in self.crews)

    def _holding(self) -> bool:
        return bool(any(crew.holding for crew in self.crews) or self.settler.unsettled or self.finalizer.busy)

    def _busy(self) -> bool:
        """Something is held, may be claimable, or waits here for another try."""
        return (
            self._holding()
            or any(claimer.busy for claimer in self.crews.claimers)
            or self._strays.busy
            or self._retries.waiting
            or self.finalizer.waiting
            or self.messenger.busy
        )

    def _settled(self, settled: Sequence[Settled], earliest_retry: float | None) -> None:
        if any(row.finished for row in settled):
            self.finalizer.call()
        if any(row.closing for row in settled):
            self.attendant.call()
        if earliest_retry is not None:
            self._retries.expect(earliest_retry)

    def _retry_due(self) -> None:
        self._look_for_work()
        # There may be later ones; the poll knows when.
        self.attendant.call()

    def _ended(self, batch: Batch) -> None:
        self.messenger.call()
        if self._on_ended is not None:
            self._on_ended(batch)

    def _look_for_work(self) -> None:
        for claimer in self.crews.claimers:
            claimer.hope.set()
