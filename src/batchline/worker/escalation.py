"""Finds lines of batches near their deadline, for upstreams that take no others.

It looks when a poll has found lines to claim, and not more often than every few seconds. So an idle worker
never asks. What it finds is claimed by the producer of that upstream, as other lines are.
"""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import msgspec
import structlog

from batchline.store import spans
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.clock import Clock
from batchline.worker.producer import ProducerScope
from batchline.worker.producers import Producers
from batchline.worker.service import Service

_LOOK_EVERY = 5.0
# With the same routing key, at once: each of them costs a claim.
_MAX_BATCHES = 4

_log = structlog.get_logger("batchline.escalation")


class EscalationScope(msgspec.Struct, frozen=True):
    """An upstream for batches near their deadline. `members` are all upstreams of a routing key."""

    # Its name in the settings.
    name: str
    scope: Scope
    # Seconds before the deadline from which on it takes lines.
    before: float
    members: Callable[[str], Sequence[ProducerScope]]


class Escalation(Service):
    name = "escalation"

    def __init__(
        self, session: Session, upstreams: Sequence[EscalationScope], producers: Producers, clock: Clock
    ) -> None:
        super().__init__()
        self._session = session
        self._upstreams = upstreams
        self._producers = producers
        self._clock = clock
        self._looked_at = float("-inf")

    def wake(self) -> None:
        """There are lines to claim."""
        if self._upstreams and self._clock() - self._looked_at >= _LOOK_EVERY:
            super().wake()

    def stop(self) -> None:
        self.idle.set()

    async def _work(self) -> None:
        self._looked_at = self._clock()
        found: dict[tuple[str, str], list[UUID]] = {}
        try:
            for upstream in self._upstreams:
                for batch_id, key in await spans.near_deadline(
                    self._session, upstream.scope, upstream.before
                ):
                    found.setdefault((upstream.name, key), []).append(batch_id)
                    self._producers.opened(key, upstream.members(key))
        except StoreUnavailable as error:
            _log.warning("cannot look for batches near their deadline", reason=str(error))
            return
        self._claim_from(found)

    def _claim_from(self, found: Mapping[tuple[str, str], Sequence[UUID]]) -> None:
        """Let producers claim from the batches of their upstream and model, and from no others."""
        for producer in self._producers:
            name, model = producer.of.name or "", producer.of.model or ""
            batch_ids = found.get((name, model), ())[:_MAX_BATCHES]
            if producer.of.escalation and set(producer.escalated) != set(batch_ids):
                _log.info("batches near their deadline", upstream=name, model=model, batches=len(batch_ids))
                producer.escalate(batch_ids)
