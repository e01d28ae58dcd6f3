"""Which producers a worker has, by its settings: what each claims, and where it sends it."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from batchline.config.settings import ANY_MODEL, ServerSettings, UpstreamSettings, WorkerSettings
from batchline.governance.operations import BELOW, url_of
from batchline.governance.registry import Registry
from batchline.model import BATCH_APIS, RESERVED, Claim, RelaySettings, Via
from batchline.model.concurrency import AutoConcurrency, typical_concurrency
from batchline.store.spans import Scope
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.escalation import EscalationScope
from batchline.worker.producer import ProducerScope
from batchline.worker.producers import Discovery, url_member
from batchline.worker.relay.relay import RelayScope

# How the routing keys of batches of `run` begin.
RESERVED_KEYS = tuple(RESERVED + scheme for scheme in urls.SCHEMES)
_URLS = (*urls.SCHEMES, *RESERVED_KEYS)


@dataclass(frozen=True, slots=True)
class UpstreamRoutes:
    """`default` is the URL for models that no upstream of the settings serves."""

    server: ServerSettings
    operations: Registry
    worker: WorkerSettings
    scope: Scope
    default: str | None = None

    def lasting(self) -> list[ProducerScope]:
        """One producer for each provider: it keeps to the limit of tasks of all its models together."""
        found = []
        for upstream in self._providers:
            if keys := self._keys(upstream):
                scope = Scope(keys=keys)
                found.append(_provider_scope(scope, upstream, upstream.concurrency))
            if ANY_MODEL in upstream.models:
                scope = replace(self._rest, excluded_prefixes=self._not_models)
                found.append(_provider_scope(scope, upstream, self.worker.concurrency))
        return found

    def discovered(self) -> list[Discovery]:
        """All other routing keys have producers while they have work."""
        number = self.worker.concurrency
        if not any(ANY_MODEL in upstream.models for upstream in (*self._providers, *self._relayed)):
            return [Discovery(self._rest, number, self.members)]
        relayed = {key for each in self._relayed for key in each.models}
        named = tuple(
            key
            for each in self.server.upstreams
            if each.provider is None
            for key in self._keys(each)
            if key not in relayed
        )
        addresses = replace(self._rest, below=_URLS)
        return [
            Discovery(Scope(keys=named), number, self.members),
            Discovery(addresses, number, self.members),
        ]

    def relays(self) -> list[RelayScope]:
        """One relay for each upstream whose lines go through its batch API."""
        return [
            RelayScope(self._relay_scope(each), each.base_url, each.run_settings(), each.concurrency)
            for each in self._relayed
        ]

    def collecting(self) -> list[RelayScope]:
        """Upstreams and batch APIs that are not used, but may have been: chunks there are collected, whatever
        model they are for."""
        scope = replace(self.scope, excluded_prefixes=tuple({*self.scope.excluded_prefixes, *RESERVED_KEYS}))
        found: list[RelayScope] = []
        for each in self.server.upstreams:
            for api in BATCH_APIS if each.provider is None else ():
                run = replace(each.run_settings(), relay=RelaySettings(via=Via.BATCH, api=api))
                of = RelayScope(scope, each.base_url, run, each.concurrency, collect_only=True)
                if all(of.target != other.target for other in (*self.relays(), *found)):
                    found.append(of)
        return found

    def _relay_scope(self, upstream: UpstreamSettings) -> Scope:
        if ANY_MODEL not in upstream.models:
            return Scope(keys=upstream.models)
        others = tuple(key for each in self.server.upstreams for key in each.models if each is not upstream)
        prefixes = tuple(sorted({*self._not_models, BELOW}))
        return replace(self.scope, excluded=others, excluded_prefixes=prefixes)

    def escalations(self) -> list[EscalationScope]:
        """Upstreams that take only lines of batches near their deadline."""
        found = []
        for each in self.server.upstreams:
            if each.escalate_before is None:
                continue
            named = tuple(model for model in each.models if model != ANY_MODEL)
            scopes = [Scope(keys=named)] if named else []
            if ANY_MODEL in each.models:
                others = {model for other in self.server.upstreams for model in other.models} - {ANY_MODEL}
                scopes.append(Scope(excluded=tuple(sorted(others)), excluded_prefixes=self._not_models))
            found += [
                EscalationScope(each.name, scope, each.escalate_before, self.of_model) for scope in scopes
            ]
        return found

    def members(self, first: Claim) -> Sequence[ProducerScope]:
        """The upstreams that serve the lines of a routing key."""
        key = first.key
        if key.startswith(_URLS):
            return [self._named_by_batch(first)]
        if key.startswith(BELOW):
            return [self._of_operation(key)]
        return self.of_model(key)

    def of_model(self, model: str) -> Sequence[ProducerScope]:
        usual, escalations = self.server.upstreams_for(model), self.server.escalations_for(model)
        if not usual:
            return [ProducerScope(Scope(keys=(model,)), self.worker.concurrency, self.default, model=model)]
        several = len(usual) + len(escalations) > 1
        return [self._member(model, each, several=several) for each in (*usual, *escalations)]

    def prepare(self, upstreams: Upstreams) -> None:
        """Tell the upstreams what the settings say of them."""
        for each in self.server.upstreams:
            upstream = upstreams.get(each.base_url, each.concurrency)
            upstream.health_path = each.health
            upstream.health_every = each.health_every
            upstream.reports_load = each.load_signal

    @property
    def slots(self) -> int:
        """The highest number of requests in flight at one upstream, as far as memory is prepared for them."""
        numbers = (self.worker.concurrency, *(each.concurrency for each in self.server.upstreams))
        return max(map(typical_concurrency, numbers))

    def _member(self, model: str, upstream: UpstreamSettings, *, several: bool) -> ProducerScope:
        concurrency = upstream.concurrency if several else self._concurrency_at(upstream)
        return ProducerScope(
            Scope(keys=(model,), sender=upstream.name if several else None),
            concurrency,
            upstream.base_url,
            model=model,
            name=upstream.name,
            weight=upstream.weight,
            fail_over=upstream.fail_over_after_timeout,
            escalation=upstream.escalate_before is not None,
        )

    def _named_by_batch(self, first: Claim) -> ProducerScope:
        """An upstream of the settings keeps its number of slots, however batches name it."""
        member = url_member(first, self.worker.concurrency)
        url = urls.normalized(member.upstream or "")
        known = (each for each in self.server.upstreams if urls.normalized(each.base_url) == url)
        upstream = next(known, None)
        if upstream is None:
            return member
        return replace(member, concurrency=self._concurrency_at(upstream))

    def _concurrency_at(self, upstream: UpstreamSettings) -> int:
        """One for the whole upstream, whatever the model: its models share what is set. That of the worker is
        for an upstream that names no models, unless a number is set for the upstream alone."""
        own, general = upstream.concurrency, self.worker.concurrency
        is_set = isinstance(general, AutoConcurrency) and not isinstance(own, AutoConcurrency)
        return own if is_set or upstream.models != (ANY_MODEL,) else general

    def _of_operation(self, key: str) -> ProducerScope:
        named = {url_of(each.name): each.upstream for each in self.operations.all()}
        upstream = next((each for each in self.server.upstreams if each.name == named.get(key)), None)
        if upstream is None:
            return ProducerScope(Scope(keys=(key,)), self.worker.concurrency)
        return ProducerScope(Scope(keys=(key,)), upstream.concurrency, upstream.base_url, name=upstream.name)

    @property
    def _providers(self) -> list[UpstreamSettings]:
        return [each for each in self.server.upstreams if each.provider is not None]

    @property
    def _relayed(self) -> list[UpstreamSettings]:
        return [each for each in self.server.upstreams if each.via is not Via.DIRECT]

    @property
    def _rest(self) -> Scope:
        """All that no provider and no relay of the settings serves by name."""
        of_providers = (key for each in self._providers for key in self._keys(each))
        of_relays = (key for each in self._relayed for key in each.models if key != ANY_MODEL)
        return replace(self.scope, excluded=(*of_providers, *of_relays))

    @property
    def _not_models(self) -> tuple[str, ...]:
        # Sorted, because workers that count the tasks of one provider lock this text.
        return tuple(sorted({*self.scope.excluded_prefixes, *_URLS}))

    def _keys(self, upstream: UpstreamSettings) -> tuple[str, ...]:
        """The models, the operations and the URL of an upstream. Empty if it is only for any model."""
        models = [model for model in upstream.models if model != ANY_MODEL]
        own = [url_of(each.name) for each in self.operations.all() if each.upstream == upstream.name]
        return (*models, *own, urls.normalized(upstream.base_url)) if models or own else ()


def _provider_scope(scope: Scope, upstream: UpstreamSettings, concurrency: int) -> ProducerScope:
    return ProducerScope(
        scope, concurrency, upstream.base_url, upstream.provider_max_tasks, name=upstream.name
    )
