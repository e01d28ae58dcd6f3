"""Which producers a worker has, by its settings."""

from typing import Any
from uuid import UUID

import pytest

from batchline.cli.routes import RESERVED_KEYS, UpstreamRoutes
from batchline.config.settings import ServerSettings, UpstreamSettings, WorkerSettings
from batchline.governance.registry import Registry
from batchline.model import Claim, ProviderSettings, RunSettings
from batchline.model.concurrency import AUTO
from batchline.store.spans import Scope
from batchline.upstreams import urls
from batchline.upstreams.http_upstream import Upstreams
from batchline.worker.producer import ProducerScope

A = UpstreamSettings("a", "http://a/v1", models=("m", "n"), concurrency=7, weight=3)
B = UpstreamSettings("b", "http://b/v1", models=("m",), concurrency=5, fail_over_after_timeout=True)
LATE = UpstreamSettings("late", "http://late/v1", models=("n",), escalate_before=60.0)
ANY = UpstreamSettings("any", "http://any/v1")
PROVIDER = UpstreamSettings("p", "http://p/v1", models=("q",), provider="openai-background")
RUNS = RESERVED_KEYS[0] + "//x"


def routes(*upstreams: UpstreamSettings, **more: Any) -> UpstreamRoutes:
    server = ServerSettings(upstreams=upstreams)
    return UpstreamRoutes(server, Registry([]), WorkerSettings(concurrency=64), Scope(), **more)


def a_claim(key: str, settings: RunSettings | None = None) -> Claim:
    return Claim(1, 1, UUID(int=1), 1, None, 1, "/v1/x", key, key, 60.0, settings or RunSettings())


def test_a_model_of_several_upstreams_has_a_producer_for_each_and_claims_note_its_name() -> None:
    assert routes(A, B, ANY).members(a_claim("m")) == [
        ProducerScope(Scope(("m",), sender="a"), 7, "http://a/v1", model="m", name="a", weight=3),
        ProducerScope(Scope(("m",), sender="b"), 5, "http://b/v1", model="m", name="b", fail_over=True),
    ]


def test_a_model_of_one_upstream_has_one_producer_and_needs_no_note() -> None:
    (only,) = routes(A, B, ANY).members(a_claim("n"))
    assert (only.name, only.model, only.scope) == ("a", "n", Scope(("n",)))


def test_an_upstream_for_escalations_is_a_member_that_waits() -> None:
    usual, late = routes(A, LATE).members(a_claim("n"))
    assert (usual.scope.sender, usual.escalation) == ("a", False)
    assert (late.scope.sender, late.escalation) == ("late", True)


def test_each_model_of_the_upstream_for_any_model_has_its_own_limit() -> None:
    found = [routes(A, ANY).members(a_claim(model)) for model in ("x", "y")]
    assert [(member.upstream, member.model) for (member,) in found] == [
        ("http://any/v1", "x"),
        ("http://any/v1", "y"),
    ]


@pytest.mark.parametrize("models", [("gpt", "*"), ("*",)])
def test_a_number_that_is_set_holds_for_all_models_of_an_upstream_together(models: tuple[str, ...]) -> None:
    server = ServerSettings(upstreams=(UpstreamSettings("u", "http://u/v1", models=models, concurrency=8),))
    found = UpstreamRoutes(server, Registry([]), WorkerSettings(), Scope())
    upstreams = Upstreams(concurrency=AUTO)
    found.prepare(upstreams)
    limits = []
    for model in ("gpt", "other", "gpt", "third"):
        (member,) = found.of_model(model)
        upstream = upstreams.get(member.upstream or "", member.concurrency)
        limits.append(upstream.limit_of(model))
    assert {(limit.value, limit.maximum) for limit in limits} == {(8, 8)}
    assert all(limit is limits[0] for limit in limits)


def test_an_upstream_for_any_model_has_the_concurrency_of_the_worker_if_both_are_set() -> None:
    any_model = UpstreamSettings("u", "http://u/v1", concurrency=8)
    (member,) = routes(any_model).of_model("x")
    assert member.concurrency == 64


def test_a_model_that_no_upstream_serves_goes_to_the_default() -> None:
    (member,) = routes(A, default="http://default").members(a_claim("x"))
    assert member.upstream == "http://default"


@pytest.mark.parametrize("key", ["HTTP://A/v1/", f"{RESERVED_KEYS[0]}//a/v1"])
def test_a_batch_that_names_an_upstream_of_the_settings_gets_its_slots(key: str) -> None:
    key = key.replace("HTTP:", "http:").replace("////", "//")
    (member,) = routes(A).members(a_claim(key))
    assert (member.concurrency, urls.normalized(member.upstream or "")) == (7, "http://a/v1")
    (other,) = routes(A).members(a_claim("http://other"))
    assert (other.concurrency, other.upstream) == (64, "http://other")


def test_a_provider_that_a_batch_names_keeps_its_limit_of_tasks() -> None:
    settings = RunSettings("http://x", provider=ProviderSettings("openai-background", max_tasks=9))
    (member,) = routes(A).members(a_claim("http://x", settings))
    assert member.max_tasks == 9


def test_a_provider_of_the_settings_has_one_lasting_producer_and_the_finder_leaves_it_alone() -> None:
    (lasting,) = routes(A, PROVIDER).lasting()
    assert (lasting.scope, lasting.max_tasks) == (Scope(("q", "http://p/v1")), 10_000)
    (rest,) = routes(A, PROVIDER).discovered()
    assert rest.scope == Scope(excluded=("q", "http://p/v1"))


def test_a_provider_for_any_model_leaves_named_models_and_urls_to_finders() -> None:
    provider = UpstreamSettings("p", "http://p/v1", provider="openai-background")
    (lasting,) = routes(A, provider).lasting()
    assert lasting.scope.keys is None
    assert set(lasting.scope.excluded_prefixes) == {*urls.SCHEMES, *RESERVED_KEYS}
    named, addresses = routes(A, provider).discovered()
    assert named.scope == Scope(("m", "n", "http://a/v1"))
    assert addresses.scope.below == (*urls.SCHEMES, *RESERVED_KEYS)


async def test_upstreams_know_their_health_checks_and_whether_to_ask_for_their_load() -> None:
    upstreams = Upstreams()
    checked = UpstreamSettings("a", "http://a/v1", health="/health", health_every=3.0)
    unasked = UpstreamSettings("b", "http://b/v1", load_signal=False)
    routes(checked, unasked).prepare(upstreams)
    upstream = upstreams.get("http://a/v1")
    assert (upstream.health_path, upstream.health_every) == ("/health", 3.0)
    assert upstream.reports_load
    assert not upstreams.get("http://b/v1").reports_load
    await upstreams.close()
