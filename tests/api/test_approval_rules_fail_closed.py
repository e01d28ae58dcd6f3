"""A rule that cannot be evaluated holds the batch: nothing runs unapproved because of its type."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from batchline.governance.expressions import Expression
from batchline.governance.operations import Operation
from batchline.governance.outcomes import Means, Outcome
from batchline.governance.registry import Registry
from tests.support.operations_client import SETTINGS
from tests.support.scenes import database
from tests.support.serving import Server, serving

RULES = {"by_cpu": "cpu > `8`", "by_env": "env == 'production'", "by_disks": "disks[?size > `100`]"}
# Without types in the schema: the rule is all that there is.
REGISTRY = Registry(
    [
        *(Operation(name, request=None, executor="none", approval=rule) for name, rule in RULES.items()),
        Operation(
            "typed",
            request=None,
            executor="none",
            approval="env == 'production'",
            schema={
                "type": "object",
                "properties": {"env": {"type": "string", "pattern": "^[a-z]+$"}},
                "required": ["env"],
            },
        ),
    ]
)


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server"), SETTINGS, REGISTRY) as running,
    ):
        yield running


def status_of(server: Server, operation: str, item: Any) -> str:
    with server.http(server.key()) as http:
        answer = http.post(f"/api/v1/operations/{operation}/batches", json={"items": [item]})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["status"])


@pytest.mark.parametrize("cpu", [9, 16.5, [16], [], {}, {"cores": 16}, True, False, "16", "", "4"])
def test_a_value_that_is_not_a_small_number_waits_for_approval(server: Server, cpu: Any) -> None:
    assert status_of(server, "by_cpu", {"cpu": cpu}) == "PENDING_APPROVAL"


@pytest.mark.parametrize("item", [{"cpu": 8}, {"cpu": 0}, {"cpu": 1.5}, {}, {"cpu": None}])
def test_a_small_number_or_none_runs(server: Server, item: Any) -> None:
    assert status_of(server, "by_cpu", item) == "IN_PROGRESS"


@pytest.mark.parametrize("env", ["production", ["production"], {"production": 1}, 1, True])
def test_production_and_anything_that_is_not_text_waits_for_approval(server: Server, env: Any) -> None:
    assert status_of(server, "by_env", {"env": env}) == "PENDING_APPROVAL"


@pytest.mark.parametrize(
    ("disks", "held"),
    [
        ([{"size": 101}], True),
        ([{"size": 100}], False),
        ([{"size": 1}, {"size": "101"}], True),
        ({"root": {"size": 101}}, True),
        (["101"], True),
        ([], False),
        (None, False),
    ],
)
def test_a_value_that_is_not_a_list_does_not_count_as_an_empty_list(
    server: Server, disks: Any, held: bool
) -> None:
    expected = "PENDING_APPROVAL" if held else "IN_PROGRESS"
    assert status_of(server, "by_disks", {"disks": disks}) == expected


@pytest.mark.parametrize("env", ["production\n", "production\u2028", "\nproduction", "production\x00"])
def test_a_line_feed_does_not_slip_through_a_pattern(server: Server, env: str) -> None:
    with server.http(server.key()) as http:
        answer = http.post("/api/v1/operations/typed/batches", json={"items": [{"env": env}]})
        assert answer.status_code == 400, answer.text
    assert status_of(server, "typed", {"env": "production"}) == "PENDING_APPROVAL"


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("spec.cpu", {"spec": [1]}),
        ("list[0]", {"list": {"0": 1}}),
        ("list[:1]", {"list": "abc"}),
        ("list[]", {"list": {"a": 1}}),
        ("list[*].a", {"list": {"a": 1}}),
        ("map.*.a", {"map": [1]}),
        ("contains(name, 'x')", {"name": 5}),
        ("max(sizes) > `1`", {"sizes": [1, "2"]}),
        ("a > b", {"a": [1], "b": [2]}),
        ("sort_by(list, &size)[-1].size > `5`", {"list": [{"size": 1}, {"size": "9"}]}),
        ("list[?a == 'x'].b[] | [?c]", {"list": [{"a": "x", "b": "no list"}]}),
    ],
)
def test_a_rule_for_another_type_may_hold(rule: str, value: Any) -> None:
    assert Expression(rule).may_hold(value)
    assert not Expression(rule).holds(value), "an outcome counts only where it is sure"


def test_a_rule_that_takes_too_long_may_hold() -> None:
    rule = Expression("a[?contains(`[1]`, @)] | [?@ == `2`]")
    assert not rule.may_hold({"a": [1] * 1000})
    assert rule.may_hold({"a": [1] * 400_000})


def test_an_outcome_that_cannot_be_evaluated_does_not_count() -> None:
    operation = Operation(
        "x", request=None, executor="none", outcomes=(Outcome(409, Means.DONE, "answer.n > `1`"),)
    )
    assert operation.meaning(409, {}, {"n": 2}) is Means.DONE
    assert operation.meaning(409, {}, {"n": "2"}) is None


def test_a_rule_that_takes_long_is_given_up_and_holds_the_batch() -> None:
    """Few steps, each of which searches a long list."""
    rule, value = Expression("lists[?contains(@, `-1`)]"), {"lists": [list(range(100_000))] * 5_000}
    began = time.thread_time()
    assert rule.may_hold(value)
    assert not rule.holds(value)
    assert time.thread_time() - began < 6
