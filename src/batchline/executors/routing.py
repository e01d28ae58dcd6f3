"""Which upstream an item goes to: the one that serves its model, by the operator's settings alone.

A batch may name an upstream of its own, as `batchline run` does; its items pass through untouched. All others
are routed by their model, and get that upstream's key, timeout and attempts. Nothing in a line but its model
has a say in this. How many are in flight at an upstream is for the worker's producers to keep.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from batchline.config.settings import ANY_MODEL, UpstreamSettings
from batchline.executors.executor import Executor, Fence
from batchline.model import Claim, Item, Ran, RunSettings

_MAX_CLAIMS = 1000


class RoutingExecutor:
    """Sends items to their upstreams through one executor that knows how to."""

    def __init__(self, upstreams: Sequence[UpstreamSettings], executor: Executor) -> None:
        self._executor = executor
        self._settings = {model: _settings(upstream) for upstream in upstreams for model in upstream.models}
        # Routed once for all items of a claim: the claim as it came, and as it goes on.
        self._claims: dict[int, tuple[Claim, Claim]] = {}

    async def run(self, item: Item) -> Ran:
        claim = item.claim
        if claim.settings.upstream is None and (routed := self._routed(claim)) is not claim:
            item = replace(item, claim=routed)
        return await self._executor.run(item)

    def fenced_by(self, fence: Fence) -> None:
        self._executor.fenced_by(fence)

    def wind_down(self) -> None:
        self._executor.wind_down()

    async def close(self) -> None:
        await self._executor.close()

    def _routed(self, claim: Claim) -> Claim:
        """The claim with its upstream's rules; itself where no upstream of the settings serves its model: the
        executor may know a default, or gives it back for another worker."""
        known = self._claims.get(claim.span_id)
        if known is None or known[0] is not claim:
            settings = self._settings.get(claim.model) or self._settings.get(ANY_MODEL)
            known = (claim, claim if settings is None else replace(claim, settings=settings))
            if len(self._claims) >= _MAX_CLAIMS:
                self._claims.clear()
            self._claims[claim.span_id] = known
        return known[1]


def _settings(upstream: UpstreamSettings) -> RunSettings:
    return RunSettings(
        upstream=upstream.base_url,
        api_key_env=upstream.api_key_env,
        max_attempts=upstream.max_attempts,
        timeout=upstream.timeout,
    )
