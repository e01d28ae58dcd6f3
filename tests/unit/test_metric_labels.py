"""Labels of metrics are bounded and show no secret."""

from batchline.config.settings import ServerSettings, UpstreamSettings
from batchline.governance.operations import FUNCTION, Operation
from batchline.governance.registry import Registry
from batchline.governance.templates import RequestTemplate
from batchline.metrics.labels import OTHER, BoundedLabels, UpstreamNames
from batchline.model import Claim, RunSettings
from batchline.model.ids import new_id

SETTINGS = ServerSettings(
    upstreams=(
        UpstreamSettings("gpu", "http://gpu.example/v1/", models=("small", "large")),
        UpstreamSettings("secret", "https://user:hunter2@cloud.example/v1", models=("cloudy",)),
        UpstreamSettings("rest", "http://rest.example/v1"),
    )
)
RESIZE = Operation("resize", RequestTemplate("gpu", "/resize"))


def names(settings: ServerSettings = SETTINGS) -> UpstreamNames:
    return UpstreamNames(settings, Registry([RESIZE]))


def claim(key: str, upstream: str | None = None) -> Claim:
    return Claim(1, 1, new_id(), 1, None, 1, "/v1/x", "m", key, 60.0, RunSettings(upstream=upstream))


def test_values_beyond_the_maximum_share_one_label_and_known_ones_never_do() -> None:
    labels = BoundedLabels(["known"], maximum=2)
    assert [labels.of(value) for value in ("a", "b", "c", "a", "known", "d")] == [
        "a",
        "b",
        OTHER,
        "a",
        "known",
        OTHER,
    ]


def test_a_python_operation_is_its_own_upstream_governed_or_not() -> None:
    refund = Operation("refund", None, executor=FUNCTION)
    found = UpstreamNames(SETTINGS, Registry([RESIZE, refund]))
    assert found.claim_label(claim("python:refund")) == "python:refund"
    assert found.claim_label(claim("/operations/refund")) == "python:refund"
    assert found.claim_label(claim("python:unlisted")) == "python:unlisted"


def test_a_long_value_is_no_label_of_its_own() -> None:
    assert BoundedLabels().of("x" * 1000) == OTHER


def test_routing_keys_have_the_upstream_that_the_settings_give_them() -> None:
    of_keys = names().of_keys
    assert of_keys["small"] == of_keys["large"] == of_keys["http://gpu.example/v1"] == "gpu"
    assert of_keys["/operations/resize"] == "gpu"
    assert of_keys["cloudy"] == "secret"
    assert "*" not in of_keys
    assert names().other == "rest"
    assert names(ServerSettings()).other == OTHER


def test_an_upstream_is_named_as_in_the_settings_however_its_url_is_written() -> None:
    found = names()
    for written in ("gpu", "http://gpu.example/v1", "http://gpu.example/v1/"):
        assert found.upstream_label(written) == "gpu"
    # As views show it, and as a batch may name it.
    assert found.upstream_label("https://cloud.example/v1") == "secret"
    assert found.upstream_label("https://user:hunter2@cloud.example/v1") == "secret"


def test_no_password_of_a_url_becomes_a_label() -> None:
    found = names()
    url = "https://me:hunter3@elsewhere.example/v1?token=hunter4"
    for label in (found.upstream_label(url), found.displayed(url), found.claim_label(claim(url, url))):
        assert label == "https://elsewhere.example/v1"


def test_many_urls_and_models_of_batches_share_labels() -> None:
    found = names()
    upstreams = {found.upstream_label(f"http://host-{n}.example/v1") for n in range(5_000)}
    models = {found.model_label(f"model-{n}") for n in range(5_000)}
    assert len(upstreams) <= 101
    assert len(models) <= 101
    assert OTHER in upstreams & models
    assert found.upstream_label("gpu") == "gpu", "what the settings name is never among the others"
    assert found.model_label("large") == "large"


def test_a_claim_has_the_label_of_where_its_items_are_sent() -> None:
    found = names()
    assert found.claim_label(claim("small")) == "gpu"
    assert found.claim_label(claim("small", "http://gpu.example/v1")) == "gpu"
    assert found.claim_label(claim("unlisted")) == "rest"
