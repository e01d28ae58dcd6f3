"""One chunk on its way through a provider's batch API, from its recorded state on.

    prepared → uploaded → creating → submitted → ended → done

Each state is committed before what follows it. So the worker that continues after a crash knows what may have
happened: a chunk in `creating` may exist at the provider, and is looked for there before it is created again.
If the provider cannot be searched, the operator decides.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from uuid import UUID

import structlog
from msgspec.structs import replace

from batchline.batches.output import failed_line
from batchline.model import Deferred, Failed, Item, Recovery, RelaySettings, Verdict, Via
from batchline.store import batches, provider_chunks
from batchline.store.provider_chunks import Advance, ChunkState, HeldChunk, MergeCounts
from batchline.store.session import Session, StoreUnavailable
from batchline.upstreams.relay.batch_api import BatchApi, ChunkOrder, LineProblem, ProviderBatch
from batchline.upstreams.relay.connection import NoAnswer, NotSent, RelayConnection, RequestRefused
from batchline.worker.relay.abandoned_chunk import ENDED_ALREADY
from batchline.worker.relay.chunk_lines import ChunkLines
from batchline.worker.relay.merge import Merge
from batchline.worker.relay.output_verdict import failed_attempt

# A batch is first polled after the shortest delay, then after a quarter of its age.
_SHORTEST = 1.0
_LONGEST = 300.0
# A chunk that is held is looked at this often: the operator may have changed the settings. So long after a
# submission without an answer, it may be submitted again.
_HELD = 300.0
# A batch that is being cancelled or has expired waits so long, and so many steps, for a provider that fails.
_CLOSING_PATIENCE = 300.0
_CLOSING_FAILURES = 3
# How often a provider that had accepted a batch may say that it does not know it.
_MAX_UNKNOWN = 3
# The provider has as many tokens in its queue as it takes. Nothing of the chunk has run.
_QUEUE_FULL = "token_limit_exceeded"
_QUEUE_FULL_DELAY = 300.0
_NOT_FOUND = 404

_log = structlog.get_logger("batchline.relay")


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """What all chunks of a relay share. `go_direct`: lines of this batch are sent directly from now on."""

    session: Session
    api: BatchApi
    connection: RelayConnection
    settings: RelaySettings
    go_direct: Callable[[UUID], None]
    # The longest line of an output that is kept.
    max_line: int
    # Nothing is submitted any more: the settings do not use this API.
    collect_only: bool = False


class ChunkRun:
    """`step` does what is to be done next."""

    def __init__(self, context: ChunkContext, held: HeldChunk, lines: ChunkLines, worker_id: UUID) -> None:
        self._context = context
        self.held = held
        self.lines = lines
        self._worker_id = worker_id
        # Passes over the outputs that left lines without one.
        self._incomplete = 0
        self._failures = 0
        # Why the operator has to decide about it.
        self.held_because: str | None = None
        # A creation is under way. What is known of it until that is recorded: the provider's answer, or that
        # the provider cannot have got all of it.
        self.creating = False
        self._answered: str | None = None
        self._unsent = False
        self._read_all = False

    async def step(self) -> float | None:
        """Seconds until the next step; None: nothing is left to do here."""
        state = await provider_chunks.read(self._context.session, self._worker_id, self.held.id)
        if state is None:
            return None
        try:
            delay = await self._advance(state)
        except (NotSent, NoAnswer) as error:
            return await self._failed(state, str(error))
        except RequestRefused as refused:
            delay = await self._failed(state, str(refused))
            return None if delay is None else max(refused.requested, delay)
        self._failures = 0
        return delay

    async def _advance(self, state: ChunkState) -> float | None:
        match state.state:
            case "prepared":
                return await self._prepared(state)
            case "uploaded":
                return await self._uploaded(state)
            case "creating":
                return await self._created_before(state)
            case "submitted":
                return await self._submitted(state)
            case _:
                return await self._merge(state)

    # --- Submitting ----------------------------------------------------------------------------------------

    async def _prepared(self, state: ChunkState) -> float | None:
        api, claim = self._context.api, self.held.claim
        if self._must_not_submit(state):
            return await self._give_back(state)
        if not api.runs(claim.url):
            message = f"The batch API of this upstream does not run lines for {claim.url}."
            return await self._end(
                state, lambda item: Failed(item, failed_line(item, "invalid_url", message)), message
            )
        if not api.uploads:
            return await self._create(state)
        try:
            file_id = await api.upload(self._context.connection, self._order(state), self._bodies(state))
        except RequestRefused as refused:
            if self._must_wait(refused, first=True):
                raise
            return await self._refused(state, str(refused))
        await self._record(state, Advance("uploaded", file_id=file_id))
        return 0.0

    async def _uploaded(self, state: ChunkState) -> float | None:
        if self._must_not_submit(state):
            return await self._give_back(state)
        return await self._create(state)

    async def _create(self, state: ChunkState) -> float | None:
        """Create the provider's batch. It is recorded before that it may exist."""
        before, creating = state.state, _in_state(state, "creating")
        if not await self._record(state, Advance("creating", searches=0)):
            return None
        try:
            self._answered = await self._submit(state)
        except NotSent:
            self._unsent = True
            await self._not_created(creating)
            raise
        except NoAnswer as error:
            return self._unsure(state, str(error))
        except RequestRefused as refused:
            if refused.unsure:
                return self._unsure(state, str(refused))
            await self._record(creating, Advance(before, error=str(refused)))
            if self._must_wait(refused, first=before == "prepared"):
                raise
            return await self._refused(_in_state(state, before), str(refused))
        await self._submitted_as(creating, self._answered)
        return _SHORTEST

    async def _submit(self, state: ChunkState) -> str:
        """The id of the provider's batch. Without all of the lines, the provider cannot have accepted it."""
        api = self._context.api
        self._read_all, self.creating = api.uploads, True
        bodies = self._bodies(state)
        try:
            return await api.create(self._context.connection, self._order(state), bodies)
        except (NoAnswer, RequestRefused) as error:
            if self._read_all or (isinstance(error, RequestRefused) and not error.unsure):
                raise
            raise NotSent(f"not all lines were sent: {error}") from error
        except StoreUnavailable:
            self._unsent = not self._read_all
            raise
        finally:
            self.creating = False
            await bodies.aclose()

    async def _not_created(self, creating: ChunkState) -> None:
        """Nothing was submitted."""
        await self._record(creating, Advance("uploaded" if creating.file_id else "prepared"))
        self._unsent = False

    def _unsure(self, state: ChunkState, reason: str) -> float:
        _log.warning("a submission has no answer", **self._fields(state), reason=reason)
        return self._context.settings.recheck if self._context.api.searchable else 0.0

    async def _created_before(self, state: ChunkState) -> float | None:
        """The provider may have accepted the chunk: find out before it is created again."""
        if self._answered is not None:
            await self._submitted_as(state, self._answered)
            return _SHORTEST
        if self._unsent:
            await self._not_created(state)
            return 0.0
        if not self._context.api.searchable:
            return await self._undecided(state)
        return await self._search(state)

    async def _search(self, state: ChunkState) -> float | None:
        """A submission may still be on its way: it is searched for twice, so far apart that it is listed.
        That is measured by the database's clock: a worker may stop, and others go on."""
        recheck = self._context.settings.recheck
        if state.searched_ago is not None and state.searched_ago < recheck:
            return recheck - state.searched_ago
        batch = await self._context.api.find(self._context.connection, self._order(state))
        if batch is not None:
            await self._submitted_as(state, batch)
            return 0.0
        if state.searched_ago is None:
            await self._record(state, Advance("creating", searches=1))
            return recheck
        await self._not_created(state)
        return 0.0

    async def _undecided(self, state: ChunkState) -> float | None:
        """The provider cannot be searched. The operator may let the chunk be submitted again, once."""
        wait = _HELD - (state.creating_for or 0.0)
        again = self._context.settings.recovery is Recovery.RESUBMIT and not state.closing
        if again and not state.resubmissions and wait <= 0:
            _log.warning("a chunk is submitted again, as the settings say", **self._fields(state))
            await self._record(state, Advance("prepared", resubmissions=1))
            return 0.0
        if not again and state.resubmissions:
            # The next time that the operator allows it is another decision.
            await self._record(state, Advance("creating", resubmissions=0))
        reason = "the provider may have accepted it, and cannot be searched"
        if again and not state.resubmissions:
            reason += "; it is submitted again five minutes after that, as the settings say"
        elif state.resubmissions:
            reason += "; it was submitted again once, and that had no answer either"
        await self._hold(state, reason, wait if 0 < wait < _HELD else _HELD)
        return None

    async def _hold(self, state: ChunkState, reason: str, delay: float = _HELD) -> None:
        _log.warning("a chunk is held", **self._fields(state), reason=reason)
        await self._release(state, reason, delay, held=True)
        self.held_because = reason

    async def _release(self, state: ChunkState, reason: str, delay: float, *, held: bool) -> None:
        """Leave the chunk for a while. A closing batch does not wait for it: it is cancelled later."""
        session = self._context.session
        await provider_chunks.release(
            session, self._worker_id, state.id, delay=delay, held=held, error=reason
        )
        if state.closing:
            await batches.conclude(session, state.batch_id)

    async def _submitted_as(self, state: ChunkState, batch: str) -> None:
        recorded = await self._record(state, Advance("submitted", provider_batch=batch, searches=0))
        self._answered = None
        if recorded:
            _log.info("chunk submitted", **self._fields(state), provider_batch=batch)
        else:
            # If its batch was deleted meanwhile, the task canceller needs the name.
            await provider_chunks.name(self._context.session, state.id, batch)

    # --- Following -----------------------------------------------------------------------------------------

    async def _submitted(self, state: ChunkState) -> float | None:
        batch = state.provider_batch or ""
        try:
            found = await self._context.api.state(self._context.connection, batch)
        except RequestRefused as refused:
            if refused.status != _NOT_FOUND:
                raise
            return await self._vanished(state)
        if found.outcome is None:
            return await self._at_work(state, batch)
        if found.problems:
            return await self._problems(state, found.problems)
        _log.info("chunk ended", **self._fields(state), outcome=found.outcome)
        await self._record(state, Advance("ended", outcome=found.outcome, searches=0))
        return 0.0

    async def _at_work(self, state: ChunkState, batch: str) -> float:
        """The provider works on it."""
        if state.searches:
            await self._record(state, Advance("submitted", searches=0))
        if not state.cancelling and self._should_stop(state):
            await self._cancel(state, batch)
            return _SHORTEST
        age, settings = state.age or 0.0, self._context.settings
        delay = min(age / 4, _LONGEST)
        if settings.via is Via.AUTO and not state.cancelling:
            # Not later than the chunk is to be given up.
            delay = min(delay, state.seconds_left - settings.fallback, settings.window - age)
        return max(delay, _SHORTEST)

    async def _cancel(self, state: ChunkState, batch: str) -> None:
        """Cancel the provider's batch. What it has finished is kept."""
        if not state.closing:
            self._context.go_direct(state.batch_id)
        try:
            await self._context.api.cancel(self._context.connection, batch)
        except RequestRefused as refused:
            if refused.status not in ENDED_ALREADY:
                raise
        _log.info("chunk is cancelled at the provider", **self._fields(state))
        await self._record(state, Advance("submitted", cancelling=True))

    async def _vanished(self, state: ChunkState) -> float | None:
        """The provider does not know a batch that it had accepted, and may have run it. One such answer says
        little, so it is asked several times."""
        if state.searches < _MAX_UNKNOWN:
            await self._record(state, Advance("submitted", searches=state.searches + 1))
            return self._context.settings.recheck
        reason = f"The provider does not know batch {state.provider_batch} any more."
        if state.closing:
            return await self._end(state, Deferred, reason)
        if self._context.settings.recovery is Recovery.RESUBMIT:
            return await self._refused(state, reason, "batch_vanished")
        await self._hold(state, reason)
        return None

    async def _problems(self, state: ChunkState, problems: tuple[LineProblem, ...]) -> float | None:
        """The provider has checked the chunk and refused it: none of its lines has run."""
        if any(each.code == _QUEUE_FULL for each in problems):
            await self._record(state, Advance("uploaded", error=problems[0].message, refused=True))
            return _QUEUE_FULL_DELAY
        of_lines = {each.line: each for each in problems if each.line is not None}
        numbers = [number for start, last in state.ordinals for number in range(start, last + 1)]
        blamed = {numbers[line - 1]: each for line, each in of_lines.items() if 0 < line <= len(numbers)}
        if not blamed:
            return await self._refused(state, problems[0].message, problems[0].code)

        def decide(item: Item) -> Verdict:
            if (problem := blamed.get(item.ordinal)) is None:
                return Deferred(item)
            return Failed(item, failed_line(item, problem.code, problem.message))

        return await self._end(state, decide, problems[0].message)

    # --- Collecting ----------------------------------------------------------------------------------------

    async def _merge(self, state: ChunkState) -> float | None:
        context, order = self._context, self._order(state)
        found = await self._ended_batch(state)
        if found is None:
            return context.settings.recheck
        given_back = self._given_back(state, found)
        merge = Merge(context.api, context.connection, self.lines, state, order)
        await merge.run(found.outputs, context.max_line, given_back=given_back)
        if await self.lines.left() and found.outcome == "completed" and not self._incomplete:
            # The provider may still be writing its files: read them once more.
            self._incomplete += 1
            return min(context.settings.recheck, _LONGEST)
        return await self._end_merge(state, merge.counts, given_back=given_back)

    async def _ended_batch(self, state: ChunkState) -> ProviderBatch | None:
        """None: ask again, later. A batch that the provider does not know any more has no outputs."""
        try:
            return await self._context.api.state(self._context.connection, state.provider_batch or "")
        except RequestRefused as refused:
            if refused.status != _NOT_FOUND:
                raise
        if state.searches < _MAX_UNKNOWN and not state.closing:
            await self._record(state, Advance("ended", searches=state.searches + 1))
            return None
        return ProviderBatch("lost")

    def _given_back(self, state: ChunkState, found: ProviderBatch) -> bool:
        """Whether lines that did not run are sent again without an attempt."""
        if found.outcome != "completed" and self._context.settings.via is Via.AUTO:
            self._context.go_direct(state.batch_id)
            return True
        return state.cancelling

    async def _end_merge(self, state: ChunkState, counts: MergeCounts, *, given_back: bool) -> float | None:
        def decide(item: Item) -> Verdict:
            if given_back:
                return Deferred(item)
            return failed_attempt(
                item, "missing_output", "The provider's outputs have no line for this request."
            )

        missing = await self.lines.settle_all(decide)
        counts.missing = 0 if given_back else missing
        if counts != MergeCounts():
            _log.warning("outputs of a chunk were wrong", **self._fields(state), counts=repr(counts))
        await self._clean(state)
        await provider_chunks.end(self._context.session, state.id, counts)
        return None

    async def _clean(self, state: ChunkState) -> None:
        """Delete the provider's files, if the operator wants that. If it fails, the files stay."""
        if self._context.settings.delete_files:
            try:
                await self._context.api.delete(self._context.connection, state.provider_batch, state.file_id)
            except (NotSent, NoAnswer, RequestRefused) as error:
                _log.warning("the provider's files are left", **self._fields(state), reason=str(error))

    # --- Endings without an output -------------------------------------------------------------------------

    async def _refused(self, state: ChunkState, reason: str, code: str = "batch_refused") -> float | None:
        """The provider does not take the chunk."""
        _log.warning("the provider refuses a chunk", **self._fields(state), reason=reason)
        if self._context.settings.via is Via.AUTO:
            self._context.go_direct(state.batch_id)
            return await self._end(state, Deferred, reason)
        return await self._end(state, lambda item: failed_attempt(item, code, reason), reason)

    async def _give_back(self, state: ChunkState) -> float | None:
        """Nothing of the chunk was submitted."""
        if not state.closing and self._should_stop(state):
            self._context.go_direct(state.batch_id)
        return await self._end(state, Deferred, None)

    async def _end(
        self, state: ChunkState, decide: Callable[[Item], Verdict], error: str | None
    ) -> float | None:
        await self.lines.settle_all(decide)
        await self._clean(state)
        await provider_chunks.end(self._context.session, state.id, MergeCounts(), error)
        return None

    # --- What steps need -----------------------------------------------------------------------------------

    def _must_wait(self, refused: RequestRefused, *, first: bool) -> bool:
        """Whether the chunk should wait: the provider is busy, or the operator has to correct the settings.
        That the path of the first request is missing says that there is no batch API."""
        if refused.passing or refused.status in (401, 403):
            return True
        return first and refused.status in (404, 405) and self._context.settings.via is Via.BATCH

    def _must_not_submit(self, state: ChunkState) -> bool:
        return self._context.collect_only or state.paused or self._should_stop(state)

    def _should_stop(self, state: ChunkState) -> bool:
        """Whether the lines are not wanted through this batch any more."""
        settings = self._context.settings
        if state.closing:
            return True
        late = state.age is not None and state.age > settings.window
        return settings.via is Via.AUTO and (state.seconds_left < settings.fallback or late)

    async def _record(self, state: ChunkState, to: Advance) -> bool:
        return await provider_chunks.advance(self._context.session, self._worker_id, state, to)

    async def _failed(self, state: ChunkState, reason: str) -> float | None:
        self._failures += 1
        _log.warning("the provider cannot be reached", **self._fields(state), reason=reason)
        if (state.closing_for or 0.0) > _CLOSING_PATIENCE and self._failures >= _CLOSING_FAILURES:
            await self._release(state, reason, _HELD, held=False)
            return None
        return float(min(2 ** min(self._failures, 10), _LONGEST))

    def _order(self, state: ChunkState) -> ChunkOrder:
        return ChunkOrder(state.id.hex, self.held.claim.url, state.created_at, state.file_id, state.refused)

    async def _bodies(self, state: ChunkState) -> AsyncGenerator[bytes, None]:
        api, order = self._context.api, self._order(state)
        async for item in self.lines.all(max(state.bytes / state.lines, 1.0)):
            yield api.line(order, item.ordinal, item.body)
        self._read_all = True

    def _fields(self, state: ChunkState) -> dict[str, object]:
        return {"chunk": state.id.hex, "lines": state.lines, "state": state.state}


def _in_state(state: ChunkState, name: str) -> ChunkState:
    return replace(state, state=name)
