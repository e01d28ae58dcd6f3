"""Several upstreams share lines by their weights while more than one of them asks."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.worker.balance import Balance


def shared(balance: Balance, members: Sequence[int], lines: int, room: int) -> dict[int, int]:
    """Let the members ask one after the other, each for as much as it has room for, until no line is left."""
    taken = dict.fromkeys(members, 0)
    while lines:
        before = lines
        for member in members:
            allowed = balance.allowed(member, members)
            wanted = room if allowed is None else min(room, allowed)
            if wanted and lines:
                found = min(wanted, lines)
                balance.claimed(member, found, wanted, members)
                taken[member] += found
                lines -= found
        assert lines < before, "somebody may always claim"
    return taken


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(200, 20_000))
def test_lines_are_shared_by_weight(weights: list[int], lines: int) -> None:
    taken = shared(Balance(weights), range(len(weights)), lines, room=10_000)
    for member, weight in enumerate(weights):
        fair = lines * weight / sum(weights)
        assert abs(taken[member] - fair) <= 0.25 * lines


def test_one_that_asks_first_leaves_a_part_of_a_small_batch() -> None:
    assert shared(Balance([1, 1]), (0, 1), 16, room=500) == {0: 8, 1: 8}


def test_claims_of_a_large_batch_are_large() -> None:
    balance = Balance([1, 1])
    for member in (0, 1) * 10:
        balance.claimed(member, 1000, 1000, (0, 1))
    assert (balance.allowed(0, (0, 1)) or 0) > 500
    balance.claimed(0, 3, 400, (0, 1))
    assert (balance.allowed(1, (0, 1)) or 0) < 50, "after a claim that found less, they are small again"


@pytest.mark.parametrize("weights", [[1, 1000], [1000, 1], [0, 0]])
def test_one_that_asks_alone_takes_what_it_wants(weights: list[int]) -> None:
    balance = Balance(weights)
    balance.claimed(0, 100_000, 100_000, (0,))
    assert balance.allowed(0, (0,)) is None
    assert balance.allowed(0, ()) is None


def test_one_that_was_away_for_long_catches_up_by_little() -> None:
    balance = Balance([1, 1])
    shared(balance, (0,), 100_000, room=1000)
    balance.claimed(0, 0, 1, (0, 1))
    taken = shared(balance, (0, 1), 1000, room=1000)
    assert taken[0] > 300


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300), st.integers(0, 300)), max_size=40),
)
def test_whatever_was_claimed_before_one_of_those_that_ask_may_claim(
    weights: list[int], claims: list[tuple[int, int, int]]
) -> None:
    balance, everybody = Balance(weights), range(len(weights))
    for member, found, more in claims:
        balance.claimed(member % len(weights), found, found + more, everybody)
        assert any(balance.allowed(each, everybody) for each in everybody)
