"""One asyncio process that finishes lines: composes the services of `worker/`, starts them and stops them.

`run` lasts until `stop` is called (twice: at once), until the worker is drained, or until its time is up.
Items that were claimed and not sent are given back. Requests in flight are waited for, or released to be sent
again under the same idempotency key.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from batchline.batches.answer_reasons import AnswerReasons
from batchline.config.settings import WorkerSettings
from batchline.executors.executor import Executor
from batchline.executors.validating import ValidatingExecutor
from batchline.files.objects import Objects
from batchline.hooks.hook import Hooks
from batchline.model import Batch, PollResult, Verdict
from batchline.model.concurrency import typical_concurrency
from batchline.store import batches, spans
from batchline.store.address import in_schema_of
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.traces.tracing import Tracing
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.upstreams.view import UpstreamView
from batchline.webhooks.sender import Sender
from batchline.worker import local_workers
from batchline.worker.bulk_runner import BulkRunner, ContinueAction, no_actions
from batchline.worker.clock import Clock, steady
from batchline.worker.context import ProducerContext
from batchline.worker.drain import Drain, HeldLines
from batchline.worker.escalation import Escalation, EscalationScope
from batchline.worker.finalizer import Finalizer
from batchline.worker.health_watch import HealthWatch
from batchline.worker.heartbeat import Heartbeat
from batchline.worker.hook_runner import HookRunner
from batchline.worker.invalid_answers import StoredInvalidAnswers
from batchline.worker.item_budget import ItemBudget
from batchline.worker.lease import Lease
from batchline.worker.listener import Listener
from batchline.worker.load import LoadMeter
from batchline.worker.load_watch import LoadWatch
from batchline.worker.maintenance import Maintenance
from batchline.worker.notification_router import NotificationRouter
from batchline.worker.observer import WorkerObserver
from batchline.worker.outbox import Outbox
from batchline.worker.pause import Pause
from batchline.worker.poller import Poller
from batchline.worker.producer import ProducerScope
from batchline.worker.producers import Discovery, Producers
from batchline.worker.rate_leaser import RateLeaser
from batchline.worker.reconciler import Reconciler
from batchline.worker.relay.collectors import Collectors
from batchline.worker.relay.relay import Relay, RelayScope
from batchline.worker.relay.relays import Relays
from batchline.worker.schedule_runner import AppSchedules, ScheduleRunner
from batchline.worker.service import HasIdle, until_idle
from batchline.worker.settler import Settler
from batchline.worker.spending import CappedExecutor, SpendingKeeper
from batchline.worker.supervisor import Supervisor
from batchline.worker.task_canceller import CancelTask, TaskCanceller, nothing_to_cancel
from batchline.worker.tasks import first

_SESSIONS = (
    "claim",
    "settle",
    "renew",
    "poll",
    "outbox",
    "hooks",
    "maintenance",
    "tasks",
    "spending",
    "rates",
    "answers",
    "bulk",
    "schedules",
    "escalation",
    "relay",
)

_log = structlog.get_logger("batchline.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What few workers need. By default a worker has one producer for its whole scope."""

    # One producer for each of these, instead of one for the whole scope.
    producers: Sequence[ProducerScope] = ()
    # Producers for the routing keys in these scopes, while they have work.
    discovered: Sequence[Discovery] = ()
    # Lines in these scopes go through the batch APIs of their upstreams.
    relays: Sequence[RelayScope] = ()
    # Upstreams whose batch API is not used any more: chunks that they have are collected.
    collecting: Sequence[RelayScope] = ()
    # Upstreams that take only lines of batches near their deadline.
    escalations: Sequence[EscalationScope] = ()
    # Shared with the executor.
    upstreams: Upstreams | None = None
    memory: BodyMemory | None = None
    # Cancels tasks of batches that have ended.
    cancel_task: CancelTask = nothing_to_cancel
    # Goes on with actions on many batches.
    continue_action: ContinueAction = no_actions
    # Run after each batch that ends, whichever worker ends it.
    hooks: Hooks = field(default_factory=Hooks)
    # Of a Python app.
    schedules: AppSchedules = field(default_factory=AppSchedules)
    # Called with each batch that this worker ends.
    on_ended: Callable[[Batch], None] | None = None
    clock: Clock = steady
    observer: WorkerObserver = field(default_factory=WorkerObserver)
    # The database's own address, if the worker's URL is a pooler's.
    listen_url: str | None = None
    # The name of the session for polls, by which other processes find such workers in pg_stat_activity.
    poll_name: str = "poll"
    # None: nothing is traced.
    tracing: Tracing | None = None


class Worker:
    def __init__(
        self,
        url: str,
        executor: Executor,
        objects: Objects,
        settings: WorkerSettings,
        scope: Scope,
        options: WorkerOptions | None = None,
    ) -> None:
        options = options or WorkerOptions()
        self._settings, self._scope = settings, scope
        self._stop, self._abort = asyncio.Event(), asyncio.Event()
        # What was known when the last claim ended, if that was interrupted.
        self._last_known: set[int] | None = None
        self._supervisor = Supervisor(self._abort)
        self._budget = ItemBudget(settings.max_items)
        self._sessions = {name: Session(url, name) for name in _SESSIONS}
        self._sessions["poll"] = Session(url, options.poll_name)
        self._router = router = NotificationRouter(options.on_ended)
        memory = options.memory or BodyMemory(settings.body_memory, typical_concurrency(settings.concurrency))

        self._observer, self._load = options.observer, LoadMeter(options.clock)
        self._tracing = tracing = options.tracing
        self.lease = Lease(settings, options.clock, self._let_go, self._observer.lease_lost)
        self._spending = SpendingKeeper(self._sessions["spending"], self.lease)
        self._reasons = AnswerReasons()
        # Checks answers first: what it adds to a request must be reserved, too.
        self._executor = ValidatingExecutor(
            CappedExecutor(executor, self._spending),
            StoredInvalidAnswers(self._sessions["answers"]),
            self._reasons,
        )
        self._executor.fenced_by(self.lease.sender)
        self.settler = Settler(self._sessions["settle"], self.lease, settings, memory, router.settled)
        self.settler.on_stored = self._stored
        self.settler.observer = self._observer
        self._reconciler = Reconciler(
            self._sessions["claim"], self.lease, self._known_spans, router.look_for_work
        )
        scopes = options.producers
        if not scopes and not options.discovered and not options.relays:
            scopes = [ProducerScope(scope, settings.concurrency)]
        # Each producer may hold a share of the bytes for requests, and all of them no more than there are.
        shares = len(scopes) + len(options.discovered) + len(options.relays)
        context = ProducerContext(
            session=self._sessions["claim"],
            executor=self._executor,
            settler=self.settler,
            lease=self.lease,
            reconciler=self._reconciler,
            settings=settings,
            memory=memory,
            clock=options.clock,
            max_request_bytes=memory.for_requests // shares,
            budget=self._budget,
            rates=RateBudgets() if options.upstreams is None else options.upstreams.budgets,
            on_claimed=router.claimed,
            observer=self._observer,
            tracer=None if tracing is None else tracing.lines,
        )
        # None: its executor sends no requests.
        self.upstreams = options.upstreams
        self._rates = RateLeaser(self._sessions["rates"], context.rates)
        self.producers = Producers(context, options.upstreams or Upstreams(), self._supervisor)
        for each in scopes:
            self.producers.add(each)
        for discovery in options.discovered:
            self.producers.discover(discovery)
        self._load_watch = LoadWatch(self.producers.upstreams)
        self._health_watch = HealthWatch(self.producers.upstreams)
        relay_session, served = self._sessions["relay"], self.producers.upstreams

        def open_relay(of: RelayScope) -> Relay:
            return Relay(context, relay_session, of, served, self.producers.add_for_now)

        self.relays = Relays(
            map(open_relay, options.relays), self._sessions["tasks"], served, options.collecting
        )
        self._collectors = Collectors(
            self._sessions["claim"], scope, self.relays, open_relay, self._supervisor.start
        )
        self._escalation = Escalation(
            self._sessions["escalation"], options.escalations, self.producers, options.clock
        )
        self.finalizer = Finalizer(url, self.lease, scope, objects, router.ended)
        if tracing is not None:
            self.finalizer.on_finalized = tracing.batches.finalized
        sender = Sender(allow_private=settings.allow_private_webhooks)
        self.outbox = Outbox(self._sessions["outbox"], sender, router.hooks_due)
        self.hooks = HookRunner(self._sessions["hooks"], options.hooks)
        self.schedules = ScheduleRunner(url, self._sessions["schedules"], options.schedules)
        self._maintenance = Maintenance(
            self._sessions["maintenance"], objects, settings, self._observer.maintenance_found
        )
        self._bulk = BulkRunner(self._sessions["bulk"], options.continue_action)
        cancel_task = self.relays.cancelling(options.cancel_task)
        self._canceller = TaskCanceller(self._sessions["tasks"], scope, cancel_task)
        self.poller = Poller(
            self._sessions["poll"],
            self.lease,
            scope,
            settings,
            self._found,
            options.hooks.names,
            self.producers.batch_limits,
            options.schedules.scope,
        )
        self._heartbeat = Heartbeat(
            self._sessions["renew"],
            self.lease,
            settings,
            self.holding,
            lambda: self._load.loads(self.producers),
        )
        self._listener = Listener(in_schema_of(options.listen_url or url, url), router.heard)
        self._drain = Drain(
            self._sessions["settle"], scope, self.poller, self.producers, self.relays, self._parts
        )

        router.producers, router.poller, router.finalizer = self.producers, self.poller, self.finalizer
        router.outbox, router.hooks, router.maintenance = self.outbox, self.hooks, self._maintenance
        router.canceller, router.bulk, router.relays = self._canceller, self._bulk, self.relays

    @property
    def claimed(self) -> int:
        """Items, since the start."""
        return self.producers.claimed + self.relays.claimed

    def upstream_views(self) -> list[UpstreamView]:
        """The upstreams of its requests as they stand now."""
        return [] if self.upstreams is None else self.upstreams.views()

    @property
    def held(self) -> Sequence[HeldLines]:
        """Lines that a worker that has drained leaves to the operator's decision."""
        return self._drain.held

    @property
    def aborting(self) -> asyncio.Event:
        """Set when the worker stops without waiting: it must have ended soon after."""
        return self._abort

    def stop(self) -> None:
        """First call: finish the requests in flight, then leave. Second call: release them and leave now."""
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()
        self._stop_sending()

    async def run(self) -> None:
        """Raises ServiceFailed if a service keeps failing. Others take over its items when the lease ends."""
        try:
            await self._expire_dead_local_workers()
            await self._register_hooks()
            async with self._supervisor.running():
                self.producers.start()
                self._supervisor.start(*self.relays)
                # Before anything drains.
                await self._collectors.look()
                self._supervisor.start(
                    self._collectors,
                    self.settler,
                    self._spending,
                    self._rates,
                    self._load_watch,
                    self._health_watch,
                    self._escalation,
                    self._heartbeat,
                    self.finalizer,
                    self.outbox,
                    self.hooks,
                    self.schedules,
                    self._maintenance,
                    self._bulk,
                    self._canceller,
                    self._reconciler,
                    self.poller,
                    self._listener,
                )
                await self._until_stopped()
                await self._stop_services()
            await self._leave()
        finally:
            self._router.retries.cancel()
            self._reasons.close()
            await self.relays.close()
            for session in self._sessions.values():
                await session.close()

    async def _expire_dead_local_workers(self) -> None:
        try:
            if expired_workers := await local_workers.expire_dead_local_workers(self._sessions["claim"]):
                _log.info("leases of dead processes ended", workers=expired_workers)
        except StoreUnavailable as error:
            _log.warning("cannot look for dead processes", reason=str(error))

    async def _register_hooks(self) -> None:
        """Before anything runs: a batch that ends earlier would have no delivery."""
        pause = Pause()
        while not self._stop.is_set():
            try:
                return await self.hooks.register()
            except StoreUnavailable as error:
                _log.warning("cannot register hooks", reason=str(error))
                await pause.wait()

    async def _until_stopped(self) -> None:
        try:
            async with asyncio.timeout(self._settings.max_seconds):
                ends = [self._stop.wait(), self._until_budget_spent()]
                await first(*ends, *([self._drain.wait()] if self._settings.drain else []))
        except TimeoutError:
            _log.info("time is up", seconds=self._settings.max_seconds)
            # Requests in flight may still finish, but not without limit: the caller relies on it.
            asyncio.get_running_loop().call_later(self._settings.grace, self._abort.set)

    async def _until_budget_spent(self) -> None:
        """Until this worker has claimed as many items as it may, and has finished them."""
        while not self._budget.spent.is_set():
            await self._budget.spent.wait()
            # Items may be given back meanwhile that were counted.
            await until_idle(self._finishing)
        _log.info("claimed as many items as it may", items=self._settings.max_items)

    def _parts(self) -> list[HasIdle]:
        """All that must be idle before the worker has drained."""
        return [
            *self._finishing(),
            self._reconciler,
            self._escalation,
            self._router.retries,
            self.outbox,
            self.hooks,
            self.schedules,
            self._maintenance,
            self._bulk,
            self._canceller,
        ]

    def _finishing(self) -> list[HasIdle]:
        """All that must be idle before claimed items are finished. Retries are left to others."""
        return [
            *self.producers.claimers,
            *self.producers.dispatchers,
            *self.relays,
            self.settler,
            self._spending,
            self.finalizer,
        ]

    async def _stop_services(self) -> None:
        """Stop services in the order in which items pass through them, so that each finishes what it has."""
        self._stop_sending()
        stop, patience = self._supervisor.stop, self._settings.stop_patience
        seeking = (
            self.poller,
            self._listener,
            self._collectors,
            self._reconciler,
            self._escalation,
            self._maintenance,
            self._bulk,
            self._canceller,
        )
        # A producer may be closed, and with it its claimer, while others stop.
        claimers = self.producers.claimers
        with self._aborting_after(patience):
            await stop(*seeking, *claimers, *self.relays)
        if any(claimer.interrupted for claimer in claimers):
            # From now on nothing is claimed: what is held and not among these was never sent.
            self._last_known = self._known_spans()
        self._executor.wind_down()
        await first(stop(*self.producers.dispatchers), self._abort_if_settles_fail())
        # An unreachable database keeps no worker from leaving: others run again what it could not settle.
        with self._aborting_after(patience):
            await stop(self.settler)
            await stop(self._spending)
            await stop(self._rates, self._load_watch, self._health_watch)
            await stop(self.finalizer)
            # A slow receiver or schedule keeps no worker from leaving for long: another one goes on with it.
            await stop(self.outbox, self.schedules, patience=self._settings.grace)
        # A hook that runs is waited for, as a request in flight is. It has a time limit.
        await stop(self.hooks, patience=self._settings.on_end_timeout + patience)
        await stop(self._heartbeat)

    def _stop_sending(self) -> None:
        """Give back what is not sent. Other services may take a while to stop, if the database is slow."""
        for dispatcher in self.producers.dispatchers:
            dispatcher.stop()

    @contextmanager
    def _aborting_after(self, seconds: float) -> Iterator[None]:
        """A service that ignores its cancellation keeps no worker from leaving."""
        timer = asyncio.get_running_loop().call_later(seconds, self._abort.set)
        try:
            yield
        finally:
            timer.cancel()

    async def _abort_if_settles_fail(self) -> None:
        """Requests in flight may finish. But an answer may wait for memory that only a settle frees."""
        clock, patience = asyncio.get_running_loop().time, self._settings.stop_patience
        began = clock()
        while not self._abort.is_set():
            since = self.settler.settling_since
            left = patience if since is None else max(since, began) + patience - clock()
            if left <= 0:
                self._abort.set()
            else:
                await asyncio.sleep(left)
        await asyncio.Event().wait()

    async def _leave(self) -> None:
        """Free whatever is still held under this name, and remove the name."""
        session, worker_id = self._sessions["settle"], self.lease.worker.id
        try:
            released = [*await self._release_unsent(), *await spans.release(session, worker_id)]
            for batch_id in dict.fromkeys(released):
                await batches.conclude(session, batch_id)
            await spans.leave(session, worker_id)
        except StoreUnavailable as error:
            _log.warning("left without releasing; the lease will end by itself", reason=str(error))

    async def _release_unsent(self) -> list[UUID]:
        """Free what an interrupted claim has taken, as never sent: it need not be looked up at a provider."""
        if self._last_known is None:
            return []
        session, worker_id = self._sessions["settle"], self.lease.worker.id
        unsent = await spans.unknown_spans(session, worker_id, self._last_known)
        return await spans.release(session, worker_id, unsent, sent=False) if unsent else []

    def _stored(
        self, verdicts: Sequence[Verdict], late: Sequence[Verdict], repeated: Sequence[Verdict]
    ) -> None:
        self._load.stored(verdicts)
        self.relays.stored(verdicts)
        # A worker holds one such item at a time, so the next one may wait (claim_returned).
        if any(verdict.item.claim.losses > 1 for verdict in verdicts):
            self._router.look_for_work()
        self._spending.stored(verdicts, late, repeated)
        if self._tracing is not None:
            self._tracing.lines.stored(verdicts, late, repeated)

    def _found(self, result: PollResult) -> None:
        """A poll has returned."""
        self._router.found(result)
        if result.claimable:
            self._escalation.wake()
        if result.schedules_due:
            self.schedules.wake()

    def _known_spans(self) -> set[int]:
        held = (producer.spans() for producer in self.producers)
        return self.settler.spans().union(self.relays.spans(), *held)

    def _let_go(self) -> int:
        """Drop what was claimed under a lost name, in all producers, not only in the one that noticed."""
        return sum(dispatcher.discard() for dispatcher in self.producers.dispatchers) + self.relays.discard()

    def holding(self) -> bool:
        """Whether it holds items, verdicts or a batch to finalize."""
        return bool(
            any(producer.holding for producer in self.producers)
            or self.relays.holding
            or self.settler.unsettled
            or self.finalizer.holding
        )
