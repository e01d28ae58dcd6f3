"""Which paths lines may have."""

import pytest

from batchline.model.endpoints import ANY_ENDPOINT, ENDPOINTS, Endpoints, is_pattern
from batchline.upstreams import urls


@pytest.mark.parametrize("path", sorted(ENDPOINTS))
def test_the_endpoints_of_batches_are_always_allowed(path: str) -> None:
    assert Endpoints().fault(path) is None


def test_no_other_path_is_allowed_unless_the_operator_names_it() -> None:
    assert Endpoints().fault("/v1/score") == f"must be one of {', '.join(sorted(ENDPOINTS))}"
    assert Endpoints(("/v1/score",)).fault("/v1/score") is None
    assert "/v1/score" in (Endpoints(("/v1/score",)).fault("/v1/rerank") or "")


def test_a_pattern_allows_all_paths_below_and_not_the_path_itself() -> None:
    below = Endpoints(("/api/*",))
    assert below.fault("/api/rank/v2") is None
    assert below.fault("/api") is not None
    assert below.fault("/apis/rank") is not None


BAD_PATHS = [
    "/v1/../admin",
    "/..",
    "/v1/.",
    "/v1/./score",
    "/v1//score",
    "//evil.example/v1/score",
    "/v1/score?x=1",
    "/v1/score#x",
    "/v1/%2e%2e/admin",
    "/v1/score/",
    "/v1/sc ore",
    "/v1/score\n",
    "/v1\\score",
    "/v1/é",
    "v1/score",
    "",
    "http://evil.example/v1/score",
    "/" + "a" * 256,
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_no_pattern_allows_a_path_that_could_leave_the_upstream(path: str) -> None:
    assert ANY_ENDPOINT.fault(path) is not None
    assert not is_pattern(path)


@pytest.mark.parametrize("path", ["/v1/score", "/rerank", "/v2/rank:top@1", "/v1/models-of-mine"])
def test_an_allowed_path_stays_below_the_upstream(path: str) -> None:
    assert ANY_ENDPOINT.fault(path) is None
    assert urls.below("http://model.example/base", path).path == f"/base{path}"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v1/models", "is read with GET"),
        ("/v1/models/m", "is read with GET"),
        ("/v1/files", "takes a form"),
        ("/v1/realtime", "is a stream"),
        ("/v1/batches", "creates a batch"),
    ],
)
def test_paths_that_take_no_json_or_answer_with_a_stream_are_refused(path: str, why: str) -> None:
    assert why in (ANY_ENDPOINT.fault(path) or "")


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/v1/chat/completion", "/v1/chat/completions"), ("/v1/embedding", "/v1/embeddings")],
)
def test_a_mistyped_endpoint_is_refused_unless_the_operator_names_it(path: str, meant: str) -> None:
    assert ANY_ENDPOINT.fault(path) == f"{path} is not known; did you mean {meant}?"
    assert Endpoints((path,)).fault(path) is None


@pytest.mark.parametrize("text", ["/v1/score", "/*", "/v1/*", "/a/b/c"])
def test_patterns(text: str) -> None:
    assert is_pattern(text)


@pytest.mark.parametrize("text", ["*", "/v1/*/x", "/v1*", "/v1/**", "/../*", 7, None])
def test_what_is_no_pattern(text: object) -> None:
    assert not is_pattern(text)
