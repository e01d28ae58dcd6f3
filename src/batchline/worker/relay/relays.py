"""The relays of a worker, as its other services see them.

A chunk of a batch that has ended may have no relay here: a `run` has made it, and is over. Then it is
cancelled with the settings that are stored with it.
"""

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from batchline.model import Claim, Item, RunSettings, Verdict
from batchline.store import provider_chunks
from batchline.store.provider_chunks import ChunkTarget, OpenChunks
from batchline.store.session import Session
from batchline.store.spans import Scope
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.relay import BATCH_API_BY_NAME
from batchline.upstreams.relay.connection import RelayConnection
from batchline.worker.relay.abandoned_chunk import cancel_abandoned
from batchline.worker.relay.relay import Relay, RelayScope
from batchline.worker.task_canceller import CancelTask


class Relays:
    """`collecting`: upstreams whose batch API the settings do not use any more, but may have used before."""

    def __init__(
        self,
        relays: Iterable[Relay],
        session: Session,
        upstreams: Upstreams,
        collecting: Sequence[RelayScope] = (),
    ) -> None:
        self._relays = list(relays)
        self._session = session
        self._upstreams = upstreams
        self._collecting = collecting

    def __iter__(self) -> Iterator[Relay]:
        return iter(self._relays)

    @property
    def claimed(self) -> int:
        """Items, since the start."""
        return sum(relay.claimed for relay in self._relays)

    @property
    def any_full(self) -> bool:
        return any(relay.full for relay in self._relays)

    def full(self, key: str) -> bool:
        """Whether there is no room for another chunk of this routing key."""
        return any(relay.full and relay.of.scope.includes(key) for relay in self._relays)

    async def unserved(self, session: Session, scope: Scope) -> list[OpenChunks]:
        """Chunks in this scope that no relay here goes on with."""
        found = await provider_chunks.open_keys(session, scope)
        return [each for each in found if not any(relay.of.goes_on_with(each) for relay in self._relays)]

    def collector(self, chunks: OpenChunks) -> RelayScope | None:
        """What a relay would work on that collects these chunks; None: the settings do not name their
        upstream."""
        return next((each for each in self._collecting if each.goes_on_with(chunks)), None)

    def add(self, relay: Relay) -> None:
        self._relays.append(relay)

    async def close(self) -> None:
        for relay in self._relays:
            await relay.close()

    @property
    def trouble(self) -> str | None:
        """Why lines wait, for people."""
        return next((trouble for relay in self._relays if (trouble := relay.trouble) is not None), None)

    @property
    def holding(self) -> bool:
        return any(relay.holding for relay in self._relays)

    def spans(self) -> set[int]:
        return {span for relay in self._relays for span in relay.spans()}

    def wake(self) -> None:
        for relay in self._relays:
            relay.wake()

    def stored(self, verdicts: Sequence[Verdict]) -> None:
        for relay in self._relays:
            relay.stored(verdicts)

    def closed(self, batch_id: UUID) -> None:
        for relay in self._relays:
            relay.closed(batch_id)

    def discard(self) -> int:
        return sum(relay.discard() for relay in self._relays)

    def cancelling(self, others: CancelTask) -> CancelTask:
        """Cancels chunks at their providers, and leaves other tasks to `others`."""

        async def cancel(item: Item) -> bool:
            task_id = item.claim.task_id
            if task_id is None or not task_id.startswith(provider_chunks.TASK):
                return await others(item)
            chunk = await provider_chunks.abandoned(self._session, provider_chunks.chunk_of(task_id))
            if chunk is None:
                return True
            for relay in self._relays:
                if relay.serves(item.claim.key, item.claim.batch_id) and relay.of.target == chunk.target:
                    return await relay.cancel_abandoned(task_id)
            run = self._settings_for(item.claim, chunk.target)
            return run is not None and await self._cancel_with(run, task_id)

        return cancel

    def _settings_for(self, claim: Claim, target: ChunkTarget) -> RunSettings | None:
        """Those of its batch, or else of an upstream that does not use its batch API any more."""
        if claim.settings.relay is not None and claim.settings.upstream is not None:
            return claim.settings
        return next((each.run for each in self._collecting if each.target == target), None)

    async def _cancel_with(self, run: RunSettings, task_id: str) -> bool:
        assert run.relay is not None
        assert run.upstream is not None
        upstream = self._upstreams.separate(run.upstream, anthropic=run.relay.api == "anthropic")
        connection = RelayConnection(upstream, run.api_key_env, lambda: self, self._upstreams.timing.now)
        api = BATCH_API_BY_NAME[run.relay.api]
        try:
            return await cancel_abandoned(self._session, api, connection, run.relay.recheck, task_id)
        finally:
            await upstream.close()
