"""Lines of a tenant with a budget: few take slots, some wait, the others are given back."""

import pytest
from msgspec.structs import replace

from batchline.model import Claim, Deferred, Item, RunSettings
from batchline.model.ids import new_id
from batchline.model.rate_budget import BudgetScope, RateBudget
from batchline.upstreams.rate_budgets import RateBudgets
from batchline.worker.tenant_gates import TenantGates

URL = "http://a"
BATCH = new_id()


class Gated:
    """Gates for a tenant `slow` that may send so much, and what they do."""

    def __init__(self, requests: int | None = 60, tokens: int | None = None) -> None:
        self.budgets = RateBudgets([RateBudget(BudgetScope(tenant="slow"), requests, tokens)])
        self.given_back: list[Deferred] = []
        self.sendable: list[Item] = []
        self.rooms = 0
        self.gates = TenantGates(self.budgets, URL, self.given_back.append, self._room)
        self.gates.open(self.sendable.extend)

    def _room(self) -> None:
        self.rooms += 1

    def arrive(self, *items: Item) -> None:
        for item in items:
            if not self.gates.refuses(item) and self.gates.arrived(item):
                self.sendable.append(item)


def some_items(count: int, tenant: str = "slow", first: int = 0) -> list[Item]:
    claim = Claim(1, 1, BATCH, 1, None, 1, "/v1/x", "m", "m", 60.0, RunSettings(), tenant=tenant)
    return [Item(claim, number, number, b"q", b"{}") for number in range(first, first + count)]


def test_other_tenants_pass() -> None:
    gated = Gated()
    gated.arrive(*some_items(1000, "quick"))
    assert len(gated.sendable) == 1000
    assert not gated.gates.waiting


def test_without_budgets_of_tenants_nothing_is_looked_at() -> None:
    budgets = RateBudgets([RateBudget(BudgetScope(URL), 60)])
    assert not TenantGates(budgets, URL).active


@pytest.mark.parametrize(
    ("requests", "tokens", "ahead"),
    [(1, None, 1), (60, None, 1), (1200, None, 5), (10**6, None, 16), (None, 9, 16)],
)
def test_as_many_go_ahead_as_the_budget_allows_in_a_quarter_of_a_second(
    requests: int | None, tokens: int | None, ahead: int
) -> None:
    gated = Gated(requests, tokens)
    gated.arrive(*some_items(40))
    assert len(gated.sendable) == ahead
    assert len(gated.gates.waiting) == 40 - ahead


def test_the_next_one_follows_when_one_has_got_its_part_of_the_budget() -> None:
    gated = Gated()
    first, second, third = some_items(3)
    gated.arrive(first, second, third)
    assert gated.sendable == [first]
    gated.budgets.passed(first)
    assert gated.sendable == [first, second]
    # It has passed already.
    gated.gates.ended(first)
    assert gated.sendable == [first, second]
    # This one has ended without.
    gated.gates.ended(second)
    assert gated.sendable == [first, second, third]


def test_a_full_gate_gives_back_and_its_batch_is_not_wanted_until_there_is_room() -> None:
    gated = Gated()
    items = some_items(100)
    gated.arrive(*items)
    assert len(gated.gates.waiting) == 64
    assert [each.item for each in gated.given_back] == items[65:]
    assert all(each.delay == 15.0 for each in gated.given_back)
    assert BATCH in gated.gates.full
    for item in items[:32]:
        gated.budgets.passed(item)
    assert gated.rooms == 1
    assert not gated.gates.full


def test_what_waits_can_be_taken_back() -> None:
    gated = Gated()
    items = some_items(5)
    gated.arrive(*items)
    assert gated.gates.discard(new_id()) == []
    assert gated.gates.discard(BATCH) == items[1:]
    assert gated.gates.discard(None) == []


def test_other_batches_of_a_tenant_are_wanted_again_when_one_batch_was_taken_back() -> None:
    gated, other = Gated(), new_id()
    gated.arrive(*some_items(60))
    gated.arrive(
        *(replace(item, claim=replace(item.claim, batch_id=other)) for item in some_items(40, first=60))
    )
    assert {BATCH, other} == set(gated.gates.full)
    gated.gates.discard(BATCH)
    assert not gated.gates.full
    assert gated.rooms == 1


def test_a_closed_gate_hears_nothing_more() -> None:
    gated = Gated()
    first, second = some_items(2)
    gated.arrive(first, second)
    gated.gates.close()
    gated.budgets.passed(first)
    assert gated.sendable == [first]
