"""The relay of one upstream: claims lines, makes chunks of them, and follows each through the batch API.

It holds the spans of its chunks as a producer holds those of its items, under the worker's lease. A chunk
whose worker is lost is taken over by the next relay, at its recorded state. Lines that must not or cannot go
through the batch API are left to a producer for their batch.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from batchline.model import Claim, RunSettings, Verdict, Via
from batchline.model.ids import new_id
from batchline.secrets.tracebacks import traceback_of
from batchline.store import provider_chunks, spans
from batchline.store.provider_chunks import ChunkLimits, ChunkTarget, HeldChunk, OpenChunks
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import HttpUpstream, Upstreams
from batchline.upstreams.relay import BATCH_API_BY_NAME
from batchline.upstreams.relay.connection import NoAnswer, NotSent, RelayConnection, RequestRefused
from batchline.worker.context import ProducerContext
from batchline.worker.pause import Pause
from batchline.worker.producer import ProducerScope
from batchline.worker.relay.abandoned_chunk import cancel_abandoned
from batchline.worker.relay.chunk_lines import ChunkLines
from batchline.worker.relay.chunk_run import ChunkContext, ChunkRun
from batchline.worker.service import Service

# Bytes of a request per token of its input, as long as nothing better is known.
_BYTES_PER_TOKEN = 3.0
# While there is no room for another chunk, look again after this long: one of another worker may have ended.
_FULL_DELAY = 30.0
# Look for chunks that others have left at least this often.
_LOOK_EVERY = 15.0
# A worker that drains waits for chunks whose next step comes within this time.
_SOON = 60.0
_MAX_TAKEN = 16
# After an error that nobody expected, a chunk is tried again after this long.
_UNEXPECTED_DELAY = 60.0

_log = structlog.get_logger("batchline.relay")


class RelayScope(msgspec.Struct, frozen=True):
    """What a relay works on, at which upstream, and how. `concurrency` is of lines that are sent directly.
    `collect_only`: the settings do not use the batch API any more, but chunks may be there."""

    scope: Scope
    upstream: str
    run: RunSettings
    concurrency: int
    collect_only: bool = False

    @property
    def target(self) -> ChunkTarget:
        assert self.run.relay is not None
        return ChunkTarget(urls.normalized(self.upstream), self.run.relay.api)

    def goes_on_with(self, chunks: OpenChunks) -> bool:
        return self.target == chunks.target and self.scope.includes(chunks.key)


@dataclass(eq=False, slots=True)
class _FollowedChunk:
    """A chunk that this worker holds."""

    run: ChunkRun
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    # Its next step is later than a worker that drains waits for.
    waits_long: bool = False


class Relay(Service):
    """`open_direct` opens a producer for lines that are sent directly, and calls back when that is closed."""

    name = "relay"

    def __init__(
        self,
        context: ProducerContext,
        session: Session,
        of: RelayScope,
        upstreams: Upstreams,
        open_direct: Callable[[ProducerScope, Callable[[], None]], None],
    ) -> None:
        super().__init__()
        settings = of.run.relay
        assert settings is not None
        self._context, self._session, self.of, self._settings = context, session, of, settings
        self._open_direct = open_direct
        self._api = BATCH_API_BY_NAME[settings.api]
        self._upstream, now = _upstream_of(of, upstreams), upstreams.timing.now
        upstream = self._upstream
        self._connection = RelayConnection(upstream, of.run.api_key_env, context.lease.sender, now)
        # Whoever cancels what nobody holds needs no lease.
        self._unfenced = RelayConnection(upstream, of.run.api_key_env, lambda: self, now)
        self._chunks = ChunkContext(
            session,
            self._api,
            self._connection,
            settings,
            self.go_direct,
            upstreams.settings.max_body,
            of.collect_only,
        )
        self._running: dict[UUID, _FollowedChunk] = {}
        # Batches whose lines are sent directly, and those of them that have a producer now.
        self._direct: set[UUID] = set()
        self._sent_now: set[UUID] = set()
        # Chunks that the operator has to decide about, and why.
        self._held: dict[UUID, str] = {}
        self._full_until = 0.0
        self._stopping = False
        self.claimed = 0
        self.wake()

    # --- What the worker asks ------------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        return bool(self._running)

    def serves(self, key: str, batch_id: UUID) -> bool:
        """Whether lines of this batch with this routing key are its own."""
        return self.of.scope.covers(key, batch_id)

    def spans(self) -> set[int]:
        return {each.run.held.claim.span_id for each in self._running.values()}

    def stored(self, verdicts: Sequence[Verdict]) -> None:
        """These verdicts are stored."""
        counts = Counter(verdict.item.claim.span_id for verdict in verdicts) if self._running else Counter()
        for each in self._running.values():
            if count := counts.get(each.run.held.claim.span_id, 0):
                each.run.lines.stored(count)

    def closed(self, batch_id: UUID) -> None:
        """The batch is cancelled, has expired or is paused."""
        for each in self._running.values():
            if each.run.held.claim.batch_id == batch_id:
                each.woken.set()

    def discard(self) -> int:
        """The lease is lost: leave all chunks to others. Returns their lines."""
        lines = sum(each.run.held.claim.size for each in self._running.values())
        self._cancel_all()
        self.wake()
        return lines

    def go_direct(self, batch_id: UUID) -> None:
        """Send the lines of this batch directly from now on. Its producer is closed when it has none left; if
        others come later, the relay claims them, and opens another one."""
        if batch_id not in self._direct:
            self._direct.add(batch_id)
            _log.info("lines are sent directly from now on", batch=str(batch_id))
        if batch_id not in self._sent_now:
            self._sent_now.add(batch_id)
            scope = replace(self.of.scope, batch_id=batch_id)
            of = ProducerScope(scope, self.of.concurrency, self.of.upstream)
            self._open_direct(of, lambda: self._sent_now.discard(batch_id))

    async def cancel_abandoned(self, task_id: str) -> bool:
        """Cancel a chunk at the provider whose batch has ended without it. False: try again later."""
        return await cancel_abandoned(
            self._session, self._api, self._unfenced, self._settings.recheck, task_id
        )

    @property
    def full(self) -> bool:
        """Whether there was no room for another chunk just now."""
        return self._clock() < self._full_until

    @property
    def trouble(self) -> str | None:
        """Why lines wait, for people."""
        if self._held:
            reason = next(iter(self._held.values()))
            return (
                f"a chunk is held: {reason}. Look at the provider's batches; then cancel the batch, or submit"
                " the chunk again with --batch-recovery resubmit"
            )
        if self.full:
            return "lines wait for room at the provider: other chunks fill its limits"
        return None

    # --- The service ---------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self._stopping:
            super().wake()

    def stop(self) -> None:
        """Leave the chunks to others, but wait a while for the answer to a creation: without it, nobody knows
        whether the provider has it."""
        if self._stopping:
            return
        self._stopping = True
        creating = {chunk: each for chunk, each in self._running.items() if each.run.creating}
        self._cancel_all(but=creating)
        if creating:
            self.idle.clear()
            asyncio.get_running_loop().call_later(self._context.settings.grace, self._cancel_all)
        else:
            self.idle.set()

    def repair(self) -> None:
        self._context.reconciler.wake()
        self.wake()

    async def run(self) -> None:
        pause = Pause(maximum=_LOOK_EVERY)
        while not self._stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._woken.wait()
            self._woken.clear()
            try:
                async with self._context.reconciler.claim_lock:
                    await self._look()
                await self._tidy()
                pause.reset()
            except StoreUnavailable as error:
                self._context.reconciler.wake()
                self.wake()
                _log.warning("cannot look for chunks", reason=str(error))
                await pause.wait()
            self._rest()
        # A creation may be under way.
        await self.idle.wait()

    @property
    def _busy(self) -> bool:
        return any(not each.waits_long for each in self._running.values())

    async def _look(self) -> None:
        """Take over chunks that are due, then make new ones while there are lines and room."""
        lease = self._context.lease
        if lease.lost:
            # A claim under the old name would renew it.
            lease.abandon()
        requested_at, worker = lease.now(), lease.worker
        taken = await provider_chunks.take(self._session, worker, self.of.scope, self.of.target, _MAX_TAKEN)
        if taken and lease.worker is worker:
            lease.renewed(requested_at, taken[0].claim.lease_left)
            for held in taken:
                self._start(held)
        while await self._claim():
            continue

    async def _tidy(self) -> None:
        """End chunks whose worker was lost after their last verdict."""
        for left in await provider_chunks.left(self._session, self.of.scope, self.of.target):
            if self._settings.delete_files:
                with suppress(NotSent, NoAnswer, RequestRefused):
                    await self._api.delete(self._connection, left.provider_batch, left.file_id)
            await provider_chunks.end(self._session, left.id, provider_chunks.MergeCounts())
            await provider_chunks.forget(self._session, left.id)

    async def _claim(self) -> bool:
        """Claim lines for chunks. False: there are none, or there is no room."""
        lease, session = self._context.lease, self._context.session
        if (
            self._stopping
            or self.of.collect_only
            or len(self._running) >= self._settings.max_chunks
            or self._clock() < self._full_until
        ):
            return False
        want = self._context.budget.allowed(self._limits().max_lines)
        if not want:
            return False
        requested_at, worker = lease.now(), lease.worker
        scope = replace(self.of.scope, without=tuple(self._sent_now))
        claims = await spans.claim(session, worker, scope, want)
        claims += await self._claim_more(claims, scope, want)
        if not claims or lease.worker is not worker:
            return False
        lease.renewed(requested_at, claims[0].lease_left)
        self._context.on_claimed()
        claims.sort(key=_kind)
        formed = [await self._form(list(group)) for _, group in groupby(claims, key=_kind)]
        return all(formed)

    async def _claim_more(self, claims: Sequence[Claim], scope: Scope, want: int) -> list[Claim]:
        """A batch's concurrency is for requests, and a claim keeps to it, unless it is for one batch only."""
        lease, session = self._context.lease, self._context.session
        want -= sum(claim.size for claim in claims)
        limited = {claim.batch_id: None for claim in claims if claim.concurrency is not None}
        more: list[Claim] = []
        for batch_id in limited:
            if want > 0:
                own = replace(scope, batch_id=batch_id)
                more += await spans.claim(session, lease.worker, own, want)
                want -= sum(claim.size for claim in more)
        return more

    async def _form(self, claims: list[Claim]) -> bool:
        """Make a chunk of lines of one kind. False: there is no room."""
        session, worker_id = self._context.session, self._context.lease.worker.id
        chunk = None
        if self._fits(claims[0]):
            chunk = await provider_chunks.form(
                session, worker_id, new_id(), claims, self._limits(), self.of.target
            )
        if chunk is None:
            await spans.release(session, worker_id, {claim.span_id for claim in claims}, sent=False)
            if self._fits(claims[0]):
                self._full_until = self._clock() + _FULL_DELAY
                return False
            self.go_direct(claims[0].batch_id)
            return True
        lines = chunk.claim.size
        self.claimed += lines
        self._context.budget.take(lines)
        _log.info("chunk formed", chunk=chunk.id.hex, lines=lines)
        self._start(chunk)
        return True

    def _fits(self, claim: Claim) -> bool:
        """Whether lines of this kind may go through the batch API. A cap and rules for answers need each
        answer before the next request."""
        settings, spending = self._settings, claim.settings.spending
        if claim.batch_id in self._direct:
            return False
        if claim.settings.answers is not None or (spending is not None and spending.capped):
            return False
        needed = max(settings.window - settings.fallback, settings.fallback)
        return settings.via is not Via.AUTO or claim.seconds_left >= needed

    def _limits(self) -> ChunkLimits:
        settings, api = self._settings, self._api
        return ChunkLimits(
            max_lines=min(settings.max_lines or api.max_lines, api.max_lines),
            max_bytes=min(settings.max_bytes or api.max_bytes, api.max_bytes),
            overhead=api.overhead,
            max_chunks=settings.max_chunks,
            max_tokens=settings.max_tokens,
            tokens_per_byte=1 / _BYTES_PER_TOKEN,
        )

    # --- Chunks --------------------------------------------------------------------------------------------

    def _start(self, held: HeldChunk) -> None:
        held = replace(held, claim=self._routed(held.claim))
        worker_id = self._context.lease.worker.id
        lines = ChunkLines(self._session, self._context.settler, worker_id, held.claim)
        running = _FollowedChunk(ChunkRun(self._chunks, held, lines, worker_id))
        self._held.pop(held.id, None)
        self._running[held.id] = running
        running.task = asyncio.create_task(self._follow(running))
        running.task.add_done_callback(partial(self._over, held.id, running))

    def _routed(self, claim: Claim) -> Claim:
        """The claim with the settings of its upstream, and the prices of its batch API."""
        spending = claim.settings.spending
        discounted = None if spending is None else spending.through_batches()
        return replace(claim, settings=replace(self.of.run, spending=discounted))

    async def _follow(self, running: _FollowedChunk) -> None:
        pause = Pause(first=0.5, maximum=_LOOK_EVERY)
        while True:
            running.waits_long = False
            try:
                delay = await self._step(running.run)
                pause.reset()
            except StoreUnavailable as error:
                _log.warning("cannot go on with a chunk", reason=str(error))
                await pause.wait()
                continue
            if delay is None or self._stopping:
                return
            running.waits_long = delay > _SOON
            self._rest()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await running.woken.wait()
            running.woken.clear()
            self.idle.clear()

    async def _step(self, run: ChunkRun) -> float | None:
        """A step, which may fail unexpectedly: then it is repeated from the recorded state, later."""
        try:
            return await run.step()
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001
            chunk = run.held.id.hex
            _log.error("a chunk failed unexpectedly", chunk=chunk, exception=traceback_of(error))
            return _UNEXPECTED_DELAY

    def _over(self, chunk: UUID, running: _FollowedChunk, _: asyncio.Task[None]) -> None:
        if self._running.get(chunk) is running:
            del self._running[chunk]
        if running.run.held_because is not None:
            self._held[chunk] = running.run.held_because
        self._full_until = 0.0
        self.wake()
        if self._stopping and not self._running:
            self.idle.set()

    def _cancel_all(self, but: Collection[UUID] = ()) -> None:
        for chunk, each in list(self._running.items()):
            if chunk not in but:
                del self._running[chunk]
                if each.task is not None:
                    each.task.cancel()

    def _clock(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close what it shares with nobody."""
        if self.of.collect_only:
            await self._upstream.close()


def _upstream_of(of: RelayScope, upstreams: Upstreams) -> HttpUpstream:
    """The settings may name another API for an upstream that is left: it has other headers."""
    if not of.collect_only:
        return upstreams.get(of.upstream)
    return upstreams.separate(of.upstream, anthropic=of.target.api == "anthropic")


def _kind(claim: Claim) -> tuple[int, int, int]:
    """Lines of one kind can be in one chunk."""
    return claim.lane_id, claim.attempt, claim.attempts_before
