"""Routes an item to the upstream that serves its model, according to the operator's settings.

A batch may name its own upstream, as `batchline run` does; its items pass through unchanged. All others are
routed by their model, and get that upstream's key, timeout and attempts. Nothing else in a line affects the
route. The worker's producers limit how many requests are in flight.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from batchline.config.settings import ANY_MODEL, UpstreamSettings
from batchline.executors.executor import Executor, Fence
from batchline.model import Claim, Item, Ran, RunSettings

_MAX_CLAIMS = 1000


class RoutingExecutor:
    """Passes items on to one executor, with the settings of their upstream."""

    def __init__(self, upstreams: Sequence[UpstreamSettings], executor: Executor) -> None:
        self._executor = executor
        self._settings = {
            model: upstream.run_settings() for upstream in upstreams for model in upstream.models
        }
        # Routed once for all items of a claim: the claim as it came, and as it is passed on.
        self._claims: dict[int, tuple[Claim, Claim]] = {}

    async def run(self, item: Item) -> Ran:
        return await self._executor.run(self.routed(item))

    def routed(self, item: Item) -> Item:
        """The item with the settings of its upstream."""
        claim = item.claim
        if claim.settings.upstream is None and (routed := self._routed(claim)) is not claim:
            return replace(item, claim=routed)
        return item

    def fenced_by(self, fence: Fence) -> None:
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

    def _routed(self, claim: Claim) -> Claim:
        """The claim with its upstream's settings; unchanged if no upstream of the settings serves its model.
        Then the executor has a default, or gives the item back for another worker."""
        known = self._claims.get(claim.span_id)
        if known is None or known[0] is not claim:
            settings = self._settings.get(claim.model) or self._settings.get(ANY_MODEL)
            known = (claim, claim if settings is None else _with(claim, settings))
            if len(self._claims) >= _MAX_CLAIMS:
                self._claims.clear()
            self._claims[claim.span_id] = known
        return known[1]


def _with(claim: Claim, settings: RunSettings) -> Claim:
    """The claim with the settings of an upstream. What its batch may spend is not the upstream's."""
    return replace(claim, settings=replace(settings, spending=claim.settings.spending))
