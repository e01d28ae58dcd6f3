"""fair_shares: tenants are filled up to one level, as water would fill vessels."""

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import scenes
from tests.support.scenes import Stage


@pytest.fixture(scope="module")
def stage(server_url: str, template: str) -> Iterator[Stage]:
    with scenes.database(server_url, template) as url, Stage(url) as stage:
        yield stage


def shares(stage: Stage, tenants: dict[str, tuple[int, int]], room: int) -> dict[str, int]:
    """What each gets, by its items in flight and those that wait."""
    in_flight, waiting = [items for items, _ in tenants.values()], [items for _, items in tenants.values()]
    query = "SELECT tenant, share FROM batchline.fair_shares_v1(%s, %s, %s, %s::integer)"
    return dict(stage.rows(query, list(tenants), in_flight, waiting, room))


def one_by_one(tenants: dict[str, tuple[int, int]], room: int) -> dict[str, int]:
    """The same by giving one item at a time to the tenant with the fewest in flight."""
    given_ = dict.fromkeys(tenants, 0)
    for _ in range(room):
        waiting = [name for name, (_, items) in tenants.items() if given_[name] < items]
        if waiting:
            given_[
                min(waiting, key=lambda name: (tenants[name][0] + given_[name], tenants[name][0], name))
            ] += 1
    return {name: items for name, items in given_.items() if items}


@pytest.mark.parametrize(
    ("tenants", "room", "expected"),
    [
        ({"a": (0, 100)}, 40, {"a": 40}),
        ({"a": (0, 100), "b": (0, 100)}, 41, {"a": 21, "b": 20}),
        ({"a": (30, 100), "b": (0, 100)}, 40, {"a": 5, "b": 35}),
        ({"a": (50, 100), "b": (0, 100)}, 40, {"b": 40}),
        ({"a": (0, 5), "b": (0, 100), "c": (0, 100)}, 45, {"a": 5, "b": 20, "c": 20}),
        ({"a": (0, 5), "b": (0, 5)}, 45, {"a": 5, "b": 5}),
        ({"a": (0, 0), "b": (7, 3)}, 9, {"b": 3}),
        ({"a": (0, 100), "b": (0, 100)}, 0, {}),
        ({"a": (0, 2_000_000_000), "b": (2_000_000_000, 2_000_000_000)}, 3, {"a": 3}),
        ({}, 10, {}),
    ],
)
def test_examples(
    stage: Stage, tenants: dict[str, tuple[int, int]], room: int, expected: dict[str, int]
) -> None:
    assert shares(stage, tenants, room) == expected


@given(
    tenants=st.dictionaries(
        st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8
    ),
    room=st.integers(0, 120),
)
@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_shares_are_those_of_giving_one_item_at_a_time(
    stage: Stage, tenants: dict[str, tuple[int, int]], room: int
) -> None:
    assert shares(stage, tenants, room) == one_by_one(tenants, room)


def test_the_function_is_planned_with_the_statement_that_calls_it(stage: Stage) -> None:
    """PostgreSQL before 18 plans an SQL function at each call, unless its body replaces the call."""
    calls = (
        "SELECT * FROM batchline.fair_shares_v1('{a}', '{1}', '{1}', 1)",
        "SELECT * FROM batchline.returned_lanes_v2(NULL, '{}', NULL, NULL, '{}')",
        "SELECT * FROM batchline.waiting_tenants_v1(NULL, '{}', NULL, NULL, '{}')",
        "SELECT * FROM batchline.waiting_lanes_v2("
        "'{a}', '{k}', '{a}', '{1}', '{}', '{}', NULL, '{}', NULL, NULL)",
    )
    for call in calls:
        with psycopg.ClientCursor(stage.db) as cursor:
            plan = "\n".join(row[0] for row in cursor.execute(b"EXPLAIN " + call.encode()))
        assert "Function Scan on fair" not in plan
        assert "_v1(" not in plan
        assert "_v2(" not in plan
        assert "Function Scan on " + call.split(".")[1].split("(")[0] not in plan
