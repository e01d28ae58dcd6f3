"""Upstreams as the dashboard shows them: which one a routing key belongs to, and how each is doing."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from batchline.config.settings import ServerSettings
from batchline.governance.operations import url_of
from batchline.governance.registry import Registry
from batchline.model import RESERVED, Batch
from batchline.model.concurrency import AutoConcurrency
from batchline.secrets.addresses import public_url
from batchline.store.overview import KeyLatency, UpstreamReport, WorkerLoad
from batchline.upstreams import urls
from batchline.upstreams.limit_signal import Signal

_MAX_UPSTREAMS = 100
_REASONS = {signal.label: signal.value for signal in Signal}
UpstreamState = Literal["ok", "limited", "unavailable", "idle"]


class UpstreamFigures(msgspec.Struct, frozen=True):
    """`limit`: requests that the live workers may have in flight there now; null: not known. `max_limit`: at
    most. `auto`: they find the limit by measuring. `signal` and `limit_reason` say what it follows, for
    programs and for people; null: no worker has reported it."""

    name: str
    limit: int | None
    max_limit: int | None
    auto: bool
    signal: str | None
    limit_reason: str | None
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
        """The upstreams of the settings, and how many requests each worker may have in flight there. An
        AutoConcurrency: each worker finds that out."""
        return self._limits

    def of_batch(self, batch: Batch) -> str | None:
        if batch.settings.upstream is not None:
            return self.of_key(batch.settings.upstream)
        return None if batch.model is None else self.of_key(batch.model)

    def of_key(self, key: str) -> str | None:
        """The upstream of a routing key; None: several, or none is known."""
        names = self.all_of_key(key)
        return names[0] if len(names) == 1 else None

    def all_of_key(self, key: str) -> tuple[str, ...]:
        """The upstreams of a routing key: a model, an operation, or a URL."""
        key = key.removeprefix(RESERVED)
        if key.startswith(urls.SCHEMES):
            public = _public(key)
            return (self._by_url.get(public, public),)
        if key in self._by_operation:
            return (self._by_operation[key],)
        serving = (*self._settings.upstreams_for(key), *self._settings.escalations_for(key))
        return tuple(upstream.name for upstream in serving)

    def served_by(self, key: str, upstream: str | None) -> str:
        """The upstream that lines with this key were sent to, if that is known."""
        names = self.all_of_key(key)
        return upstream if upstream in names else next(iter(names), key.removeprefix(RESERVED))


def figures(names: UpstreamDirectory, own: Collection[str], facts: UpstreamFacts) -> list[UpstreamFigures]:
    """The busiest first: those of the settings, those of the tenant's open batches (`own`), and where workers
    hold its lines. Reports of workers are about all tenants, and add no others."""
    in_flight = Counter[str](dict.fromkeys((*names.known, *own), 0))
    for load in facts.loads:
        if load.key is not None:
            in_flight[names.served_by(load.key, load.sent_to)] += load.items
    # Which of several upstreams has answered is not stored.
    latencies = {name: each for each in facts.latencies for name in names.all_of_key(each.key) or (each.key,)}
    refused = Counter[str]()
    for key, number in facts.refusals.items():
        for name in names.all_of_key(key) or (key,):
            refused[name] += number
    reports: dict[str, list[UpstreamReport]] = {}
    for report in facts.reports:
        reports.setdefault(names.served_by(report.key, report.upstream), []).append(report)
    workers = len({load.id for load in facts.loads})
    found = []
    for name, items in in_flight.items():
        latency, reported = latencies.get(name), reports.get(name, ())
        state, reason = _state(items, refused[name], reported)
        limit = _reported_limit(reported) or _set_limit(names.known.get(name), workers)
        found.append(
            UpstreamFigures(
                name=name,
                limit=limit.now,
                max_limit=limit.maximum,
                auto=limit.auto,
                signal=limit.signal,
                limit_reason=_REASONS.get(limit.signal or ""),
                in_flight=items,
                p50_ms=None if latency is None else round(latency.p50, 1),
                p95_ms=None if latency is None else round(latency.p95, 1),
                rate_limited_per_min=refused[name],
                state=state,
                reason=reason,
            )
        )
    return sorted(found, key=lambda each: (-each.in_flight, each.name))[:_MAX_UPSTREAMS]


class _Limit(msgspec.Struct, frozen=True):
    now: int | None
    maximum: int | None
    auto: bool = False
    signal: str | None = None


def _reported_limit(reports: Sequence[UpstreamReport]) -> _Limit | None:
    """What workers report. Limits that they find are of one key each; a number holds for all keys
    together."""
    known = [each for each in reports if each.limit is not None]
    if not known:
        return None
    auto = any(each.auto for each in known)
    limits, maxima = [each.limit or 0 for each in known], [each.ceiling or 0 for each in known]
    explains = max(known, key=lambda each: each.limit or 0)
    together = sum if auto else max
    return _Limit(together(limits), together(maxima), auto, explains.signal)


def _set_limit(per_worker: int | None, workers: int) -> _Limit:
    """What the settings say, while no worker reports."""
    if per_worker is None:
        return _Limit(None, None)
    maximum, auto = int(per_worker) * workers, isinstance(per_worker, AutoConcurrency)
    return _Limit(None if auto else maximum, maximum, auto)


def _state(items: int, refused: int, reports: Sequence[UpstreamReport]) -> tuple[UpstreamState, str | None]:
    """It is unavailable if no worker that reports on it can send to it."""
    if reports and all(each.cut_off == each.workers for each in reports):
        return "unavailable", f"no worker can send to it: {reports[0].reason}"
    if refused:
        return "limited", f"it answered 429 to {refused} requests in the last minute"
    if any(each.cut_off for each in reports):
        reason = next(each.reason for each in reports if each.cut_off)
        return "limited", f"some workers cannot send to it: {reason}"
    if any(each.limited for each in reports):
        return "limited", "it refuses requests, answers too slowly or is at its budget, so workers send fewer"
    return "ok" if items else "idle", None


def _public(url: str) -> str:
    try:
        return public_url(urls.normalized(url))
    except urls.InvalidUpstream:
        return public_url(url)
