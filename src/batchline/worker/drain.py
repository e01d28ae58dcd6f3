"""Waits until a worker has drained: nothing is left that it could do now or soon.

Services know whether they are idle, and a poll says whether there is work. Both must agree: a service that a
poll or a notification has woken is not idle any more.

Lines behind a provider's limit of tasks are work that no claim returns. While tasks end, there will be room
for them. But a limit that is full of held lines stays full until the operator decides, so a worker does not
wait for it. Nor does it wait for chunks that none of its relays serves.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog

from batchline.store import providers
from batchline.store.session import Session, StoreUnavailable
from batchline.store.spans import Scope
from batchline.worker.pause import Pause
from batchline.worker.poller import Poller
from batchline.worker.producers import Producers
from batchline.worker.relay.relays import Relays
from batchline.worker.service import HasIdle, are_idle, until_idle

_log = structlog.get_logger("batchline.worker")


class HeldLines(msgspec.Struct, frozen=True):
    """Lines that the provider may have accepted without an answer. `limit_full`: no other line is submitted
    there while they are held."""

    upstream: str
    lines: int
    limit_full: bool


class Drain:
    """`parts` must be idle before the worker has drained."""

    def __init__(
        self,
        session: Session,
        scope: Scope,
        poller: Poller,
        producers: Producers,
        relays: Relays,
        parts: Callable[[], Iterable[HasIdle]],
    ) -> None:
        self._session = session
        self._scope = scope
        self._poller = poller
        self._producers = producers
        self._relays = relays
        self._parts = parts
        self.held: Sequence[HeldLines] = ()
        """What was held when the worker had drained."""

    async def wait(self) -> None:
        now, pause = True, Pause(first=0.01, maximum=0.5)
        while True:
            await until_idle(self._parts)
            before = self._claimed
            found = await self._poller.sees_work(now=now)
            idle = are_idle(self._parts())
            if idle and not found:
                break
            # Lines that a relay has no room for were claimed and given back, and come due at once.
            stuck = self._poller.only_claimable or self._relays.any_full
            if stuck and await self._held_up(before):
                break
            # If all are idle, what was found comes due later, and the poller polls again then.
            now = not idle
            if now:
                # Polls must not follow each other at once if they find work that others are about to take.
                # The next one that is due needs no pause, and could come and go during it.
                await pause.wait()
        self.held = await self._find_held()

    @property
    def _claimed(self) -> int:
        return self._producers.claimed + self._relays.claimed

    async def _held_up(self, claimed_before: int) -> bool:
        """Whether the claims that the poll has woken found nothing because of a limit full of held lines."""
        await until_idle(self._parts)
        return self._claimed == claimed_before and any(held.limit_full for held in await self._find_held())

    async def _find_held(self) -> list[HeldLines]:
        try:
            full = [key for scope, limit in self._limits() for key in await self._full(scope, limit)]
            counts = await providers.counts(self._session, self._scope)
            unserved = await self._relays.unserved(self._session, self._scope)
        except StoreUnavailable as error:
            _log.warning("cannot count held lines", reason=str(error))
            return []
        held = [
            HeldLines(
                each.upstream,
                each.submission_unknown,
                each.upstream in full or self._relays.full(each.upstream),
            )
            for each in counts
            if each.submission_unknown
        ]
        known = {each.upstream for each in held}
        return held + [HeldLines(each.key, each.lines, False) for each in unserved if each.key not in known]

    def _limits(self) -> list[tuple[Scope, int]]:
        return [(each.scope, each.max_tasks) for each in self._producers if each.max_tasks is not None]

    async def _full(self, scope: Scope, limit: int) -> list[str]:
        """The routing keys of held lines, if they fill the limit of this scope."""
        held = [each for each in await providers.counts(self._session, scope) if each.submission_unknown]
        is_full = sum(each.submission_unknown for each in held) >= limit
        return [each.upstream for each in held] if is_full else []
