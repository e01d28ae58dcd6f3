"""Upstreams as the dashboard shows them: which one a routing key belongs to, and how each is doing."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from batchline.config.settings import ServerSettings
from batchline.governance.operations import url_of
from batchline.governance.registry import Registry
from batchline.model import RESERVED, Batch
from batchline.secrets.addresses import public_url
from batchline.store.overview import KeyLatency, UpstreamReport, WorkerLoad
from batchline.upstreams import urls

_MAX_UPSTREAMS = 100
UpstreamState = Literal["ok", "limited", "unreachable", "idle"]


class UpstreamFigures(msgspec.Struct, frozen=True):
    """`limit`: requests that the live workers may have in flight there, by the settings; null: not known."""

    name: str
    limit: int | None
    in_flight: int
    p50_ms: float | None
    p95_ms: float | None
    rate_limited_per_min: int
    state: UpstreamState
    reason: str | None


class UpstreamFacts(msgspec.Struct, frozen=True):
    """What was read: of one tenant, except `reports`."""

    loads: Sequence[WorkerLoad]
    latencies: Sequence[KeyLatency]
    refusals: Mapping[str, int]
    reports: Sequence[UpstreamReport]


class UpstreamDirectory:
    """Names of upstreams: those of the settings, and otherwise URLs without secrets."""

    def __init__(self, settings: ServerSettings, operations: Registry) -> None:
        self._settings = settings
        self._limits = {each.name: each.concurrency for each in settings.upstreams}
        self._by_url = {_public(each.base_url): each.name for each in reversed(settings.upstreams)}
        self._by_operation = {
            url_of(each.name): each.upstream for each in operations.all() if each.upstream is not None
        }

    @property
    def known(self) -> Mapping[str, int]:
        """The upstreams of the settings, and how many requests each worker may have in flight there."""
        return self._limits

    def of_batch(self, batch: Batch) -> str | None:
        if batch.settings.upstream is not None:
            return self.of_key(batch.settings.upstream)
        return None if batch.model is None else self.of_key(batch.model)

    def of_key(self, key: str) -> str | None:
        """The upstream of a routing key: a model, an operation, or a URL."""
        key = key.removeprefix(RESERVED)
        if key.startswith(urls.SCHEMES):
            public = _public(key)
            return self._by_url.get(public, public)
        if key in self._by_operation:
            return self._by_operation[key]
        upstream = self._settings.upstream_for(key)
        return None if upstream is None else upstream.name


def figures(names: UpstreamDirectory, own: Collection[str], facts: UpstreamFacts) -> list[UpstreamFigures]:
    """The busiest first: those of the settings, those of the tenant's open batches (`own`), and where workers
    hold its lines. Reports of workers are about all tenants, and add no others."""
    in_flight = Counter[str](dict.fromkeys((*names.known, *own), 0))
    for load in facts.loads:
        if load.key is not None:
            in_flight[names.of_key(load.key) or load.key] += load.items
    latencies = {names.of_key(each.key) or each.key: each for each in facts.latencies}
    refused = Counter[str]()
    for key, number in facts.refusals.items():
        refused[names.of_key(key) or key] += number
    reports: dict[str, list[UpstreamReport]] = {}
    for report in facts.reports:
        reports.setdefault(names.of_key(report.key) or report.key.removeprefix(RESERVED), []).append(report)
    workers = len({load.id for load in facts.loads})
    found = []
    for name, items in in_flight.items():
        per_worker, latency = names.known.get(name), latencies.get(name)
        state, reason = _state(items, refused[name], reports.get(name, ()))
        found.append(
            UpstreamFigures(
                name=name,
                limit=None if per_worker is None else per_worker * workers,
                in_flight=items,
                p50_ms=None if latency is None else round(latency.p50, 1),
                p95_ms=None if latency is None else round(latency.p95, 1),
                rate_limited_per_min=refused[name],
                state=state,
                reason=reason,
            )
        )
    return sorted(found, key=lambda each: (-each.in_flight, each.name))[:_MAX_UPSTREAMS]


def _state(items: int, refused: int, reports: Sequence[UpstreamReport]) -> tuple[UpstreamState, str | None]:
    """It is unreachable if no worker that reports on it can connect."""
    if reports and all(each.cut_off == each.workers for each in reports):
        return "unreachable", f"no worker can connect: {reports[0].reason}"
    if refused:
        return "limited", f"it answered 429 to {refused} requests in the last minute"
    if any(each.cut_off for each in reports):
        reason = next(each.reason for each in reports if each.cut_off)
        return "limited", f"some workers cannot connect: {reason}"
    if any(each.limited for each in reports):
        return "limited", "it refuses requests or answers too slowly, so workers send fewer at once"
    return "ok" if items else "idle", None


def _public(url: str) -> str:
    try:
        return public_url(urls.normalized(url))
    except urls.InvalidUpstream:
        return public_url(url)
