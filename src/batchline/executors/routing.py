"""Routes an item to the upstream that serves its model, according to the operator's settings.

A batch may name its own upstream, as `batchline run` does; its items pass through unchanged. All others are
routed by their model, and get that upstream's key, timeout and attempts, and its name for the model. If
several upstreams serve a model, the claim was made for one of them. Nothing else in a line affects the route.
The worker's producers limit how many requests are in flight.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.executors.aliases import with_model
from batchline.executors.executor import Executor, Fence
from batchline.model import Claim, Item, Ran

_MAX_CLAIMS = 1000


class RoutingExecutor:
    """Passes items on to one executor, with the settings of their upstream."""

    def __init__(self, upstreams: Sequence[UpstreamSettings], executor: Executor) -> None:
        self._executor = executor
        self._server = ServerSettings(upstreams=tuple(upstreams))
        self._named = {upstream.name: upstream for upstream in upstreams}
        # Routed once for all items of a claim: the claim as it came, as it is passed on, and the upstream's
        # name for its model, if that is another one.
        self._claims: dict[int, tuple[Claim, Claim, str | None]] = {}

    async def run(self, item: Item) -> Ran:
        return await self._executor.run(self.routed(item))

    def routed(self, item: Item) -> Item:
        """The item with the settings of its upstream."""
        if item.claim.settings.upstream is not None:
            return item
        _, claim, name = self._route(item.claim)
        if name is not None:
            return replace(item, claim=claim, body=with_model(item.body, name))
        return item if claim is item.claim else replace(item, claim=claim)

    def fenced_by(self, fence: Fence) -> None:
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

    def _route(self, claim: Claim) -> tuple[Claim, Claim, str | None]:
        """The claim is unchanged if no upstream of the settings serves its model. Then the executor has a
        default, or gives the item back for another worker."""
        known = self._claims.get(claim.span_id)
        if known is None or known[0] is not claim:
            upstream = self._named.get(claim.sender or "") or self._server.upstream_for(claim.model)
            known = (claim, claim, None) if upstream is None else _through(upstream, claim)
            if len(self._claims) >= _MAX_CLAIMS:
                self._claims.clear()
            self._claims[claim.span_id] = known
        return known


def _through(upstream: UpstreamSettings, claim: Claim) -> tuple[Claim, Claim, str | None]:
    """The claim with the settings of an upstream. What its batch may spend is not the upstream's."""
    settings = replace(upstream.run_settings(), spending=claim.settings.spending)
    routed = replace(claim, settings=settings, fails_over=upstream.fail_over_after_timeout)
    return claim, routed, upstream.aliases.get(claim.model)
