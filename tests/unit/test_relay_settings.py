"""Settings of provider batches: which lines a relay claims, what contradicts itself, and what lines cost."""

import pytest

from batchline.cli.display.console import CommandError
from batchline.cli.relay_options import RelayOptions, after_relay, check_relayed
from batchline.cli.routes import UpstreamRoutes
from batchline.config.settings import ServerSettings, UpstreamSettings, WorkerSettings
from batchline.config.upstream_checks import contradictions
from batchline.governance.registry import Registry
from batchline.model import ModelPrice, RelaySettings, RunSettings, Spending, Usage, Via
from batchline.store.spans import Scope

URL = "http://provider.test/v1"


def routes(*upstreams: UpstreamSettings) -> UpstreamRoutes:
    return UpstreamRoutes(ServerSettings(upstreams=upstreams), Registry([]), WorkerSettings(), Scope())


def test_a_relay_claims_the_models_of_its_upstream_and_nobody_else_does() -> None:
    found = routes(
        UpstreamSettings("provider", URL, models=("a", "b"), via=Via.BATCH),
        UpstreamSettings("other", "http://other.test"),
    )
    (relay,) = found.relays()
    assert (relay.scope.keys, relay.upstream) == (("a", "b"), URL)
    assert all({"a", "b"} <= set(each.scope.excluded) for each in found.discovered())


def test_a_relay_for_any_model_leaves_named_models_urls_and_operations_to_others() -> None:
    found = routes(
        UpstreamSettings("provider", URL, via=Via.AUTO),
        UpstreamSettings("other", "http://other.test", models=("a",)),
    )
    (relay,) = found.relays()
    assert relay.scope.keys is None
    assert relay.scope.excluded == ("a",)
    assert {"http://", "https://", "run:http://"} <= set(relay.scope.excluded_prefixes)
    assert [each.scope.keys for each in found.discovered() if each.scope.keys] != []
    assert all(each.scope.keys or each.scope.below for each in found.discovered())


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"batch_window": 60.0}, "batch_window"),
        ({"via": Via.BATCH, "provider": "openai-background"}, "via"),
        ({"via": Via.BATCH, "escalate_before": 60.0}, "via"),
        ({"via": Via.AUTO, "aliases": {"a": "b"}}, "via"),
    ],
)
def test_settings_that_contradict_via_are_named(given: dict[str, object], key: str) -> None:
    upstream = UpstreamSettings("provider", URL, models=("a",), **given)  # type: ignore[arg-type]
    found = [wrong for _, wrong, _ in contradictions([upstream], lambda _, name: name in given)]
    assert key in found


def test_an_upstream_with_a_batch_api_is_the_only_one_for_its_models() -> None:
    several = [
        UpstreamSettings("provider", URL, models=("a",), via=Via.BATCH),
        UpstreamSettings("other", "http://other.test", models=("a",)),
    ]
    assert [(no, key) for no, key, _ in contradictions(several, lambda *_: False)] == [(0, "via")]


def test_options_of_a_batch_api_need_via() -> None:
    server = UpstreamSettings("", URL)
    with pytest.raises(CommandError, match="--batch-window is for --via batch"):
        RelayOptions(batch_window=60.0).applied(server)
    assert RelayOptions(via=Via.AUTO, batch_window=60.0).applied(server).batch_window == 60.0
    assert RelayOptions().applied(server) == server


def test_a_cap_cannot_be_kept_through_a_batch_api() -> None:
    capped = RunSettings(URL, relay=RelaySettings(), spending=Spending(max_tokens=5))
    with pytest.raises(CommandError, match="--max-tokens"):
        check_relayed(capped)
    check_relayed(RunSettings(URL, relay=RelaySettings(via=Via.AUTO), spending=Spending(max_tokens=5)))


def test_a_run_that_goes_on_directly_cancels_its_chunks() -> None:
    relay = after_relay(RunSettings(URL), RunSettings(URL, relay=RelaySettings())).relay
    assert relay is not None
    # No deadline is further away than this, so all chunks are given up.
    assert (relay.via, relay.fallback > 8000 * 365 * 86_400) == (Via.AUTO, True)
    assert after_relay(RunSettings(URL), RunSettings(URL)).relay is None


def test_lines_through_a_batch_api_cost_less() -> None:
    spending = Spending(prices={"a": ModelPrice(2.0, 4.0, batch_discount=0.25)})
    usage = Usage(1_000_000, 0, 1_000_000)
    assert spending.cost("a", usage) == 6_000_000_000
    assert spending.through_batches().cost("a", usage) == 4_500_000_000
