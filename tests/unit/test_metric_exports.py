"""Views of upstreams and numbers of the database as metrics: one sample for each set of labels."""

from collections.abc import Iterable

from msgspec.structs import replace
from prometheus_client.metrics_core import Metric

from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.governance.registry import Registry
from batchline.metrics import exports
from batchline.metrics.demand import Demand, ModelDemand, UpstreamDemand
from batchline.metrics.labels import UpstreamNames
from batchline.store.providers import ProviderCounts
from batchline.upstreams.view import LimitingBudget, UpstreamView

GPU = UpstreamSettings("gpu", "http://user:secret@gpu.example/v1", models=("small",))
VIEW = UpstreamView(
    "http://gpu.example/v1", 3, 16, 64, full=False, p50=0.2, p95=0.5, oldest=1.5, signal_label="knee"
)
MODEL = ModelDemand("small", 10, 5.0, 100.0, 2, 1.0)
UPSTREAM = UpstreamDemand(GPU.base_url, 10, 2, 1.0, 0.5, 90.0, False, 1, 1, [MODEL])


def names() -> UpstreamNames:
    return UpstreamNames(ServerSettings(upstreams=(GPU,)), Registry())


def samples(metrics: Iterable[Metric]) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric in metrics:
        for sample in metric.samples:
            series = f"{sample.name.removeprefix('batchline_')} {' '.join(sample.labels.values())}".strip()
            assert series not in found, "Prometheus refuses a page with two samples of one series"
            found[series] = sample.value
    return found


def test_a_view_has_the_name_of_the_settings_and_what_limits_it() -> None:
    found = samples(exports.upstreams([VIEW], names()))
    assert found == {
        "upstream_in_flight gpu": 3,
        "upstream_limit gpu": 16,
        "upstream_max_limit gpu": 64,
        "upstream_limit_signal gpu knee": 1,
        "upstream_oldest_request_seconds gpu": 1.5,
        "upstream_latency_seconds gpu 50": 0.2,
        "upstream_latency_seconds gpu 95": 0.5,
        "upstream_reachable gpu": 1,
        "upstream_available gpu": 1,
        "upstream_crashes_total gpu": 0,
        "upstream_suspects gpu": 0,
        "upstream_rate_limited gpu": 0,
        "budget_waiting_requests gpu": 0,
        "budget_wait_seconds gpu": 0,
    }


def test_signals_of_two_upstreams_with_one_label_are_both_exported() -> None:
    found = samples(exports.upstreams([VIEW, VIEW, replace(VIEW, signal_label="refused")], names()))
    assert (found["upstream_limit_signal gpu knee"], found["upstream_limit_signal gpu refused"]) == (1, 1)


def test_requests_that_wait_for_a_budget_are_counted() -> None:
    limited = replace(VIEW, budget=LimitingBudget(600, None, waiting=7, seconds=2.5))
    found = samples(exports.upstreams([VIEW, limited], names()))
    assert (found["budget_waiting_requests gpu"], found["budget_wait_seconds gpu"]) == (7, 2.5)


def test_an_outage_is_reported_while_somebody_tries() -> None:
    down = replace(VIEW, unavailable_for=500.0, last_try=10.0, connects=False)
    found = samples(exports.upstreams([down], names()))
    assert (found["upstream_reachable gpu"], found["upstream_available gpu"]) == (0, 0)
    found = samples(exports.upstreams([replace(down, last_try=500.0)], names()))
    assert not {"upstream_reachable gpu", "upstream_available gpu"} & set(found)


def test_an_upstream_behind_a_gateway_is_unavailable_and_reachable() -> None:
    found = samples(exports.upstreams([replace(VIEW, unavailable_for=5.0, reason="it answers 502")], names()))
    assert (found["upstream_reachable gpu"], found["upstream_available gpu"]) == (1, 0)


def test_crashes_and_suspects_are_counted() -> None:
    found = samples(exports.upstreams([VIEW, replace(VIEW, crashes=3, suspects=9)], names()))
    assert (found["upstream_crashes_total gpu"], found["upstream_suspects gpu"]) == (3, 9)


def test_upstreams_with_one_label_are_one_sample() -> None:
    slow = replace(VIEW, in_flight=4, p50=None, p95=9.0, unavailable_for=1.0, connects=False, rate_limit=2.0)
    found = samples(exports.upstreams([VIEW, slow], names()))
    assert found["upstream_in_flight gpu"] == 7
    assert found["upstream_latency_seconds gpu 50"] == 0.2
    assert found["upstream_latency_seconds gpu 95"] == 9.0
    assert found["upstream_reachable gpu"] == 0
    assert found["upstream_rate_limited gpu"] == 1


def test_demands_with_one_label_are_one_sample() -> None:
    other = replace(UPSTREAM, upstream="http://other:pass@gpu.example/v1", deadline_margin=-5.0)
    found = samples(exports.demand(Demand(3, [UPSTREAM, other]), names()))
    assert found["queue_items gpu small"] == 20
    assert found["queue_age_seconds gpu small"] == 5
    assert found["in_flight gpu small"] == 4
    assert found["deadline_margin_seconds gpu"] == -5
    assert found["demand_workers"] == 3


def test_work_without_a_deadline_has_no_margin() -> None:
    found = samples(exports.demand(Demand(1, [replace(UPSTREAM, deadline_margin=None)]), names()))
    assert "deadline_margin_seconds gpu" not in found


def test_items_of_providers_are_named_as_their_upstreams() -> None:
    counts = [ProviderCounts("small", 4, 1), ProviderCounts("https://me:pass@cloud.example/v1", 2, 0)]
    assert samples(exports.provider_items(counts, names())) == {
        "provider_items gpu processing": 4,
        "provider_items gpu submission_unknown": 1,
        "provider_items https://cloud.example/v1 processing": 2,
        "provider_items https://cloud.example/v1 submission_unknown": 0,
    }
