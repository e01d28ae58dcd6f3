"""What a batch has cost: its prices, its caps, and how it stands."""

from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from batchline.config.settings import ServerSettings
from batchline.model import Batch, ModelPrice, Spending
from batchline.model.spending import ANY_PRICE, dollars
from batchline.store import budgets, files, forecasts
from batchline.store.budgets import Amount, Holds
from batchline.store.session import Session

_MAX_NAMED = 5
_NO_HOLDS = Holds(Amount(), Amount())


class UnknownPrice(Exception):
    """A cap on the cost needs a price for each model. The message is for a person."""


class BatchCost(msgspec.Struct, frozen=True):
    """How a batch stands, and what is held of its caps."""

    batch: Batch
    spending: Spending
    holds: Holds = _NO_HOLDS

    @property
    def known(self) -> bool:
        return bool(self.spending.prices)

    @property
    def tokens(self) -> int:
        return self.batch.input_tokens + self.batch.output_tokens

    @property
    def over_cost(self) -> int:
        """Nano-dollars beyond the cap: requests have cost more than was reserved for them."""
        cap = self.spending.max_cost
        return 0 if cap is None else max(0, self.batch.cost - cap)

    @property
    def over_tokens(self) -> int:
        cap = self.spending.max_tokens
        return 0 if cap is None else max(0, self.tokens - cap)


def spending_in(
    settings: ServerSettings, max_cost: int | None = None, max_tokens: int | None = None
) -> Spending:
    """The prices of the settings, and caps; nano-dollars."""
    return Spending(
        prices={
            each.model: ModelPrice(each.input, each.output, each.cached_input, each.batch_discount)
            for each in settings.prices
        },
        max_cost=max_cost,
        max_tokens=max_tokens,
        bytes_per_token=settings.spending.bytes_per_token,
        output_tokens=settings.spending.output_tokens,
    )


async def spending_for(session: Session, file_id: UUID, spending: Spending) -> Spending | None:
    """The part that concerns the models of a file; None if there is neither a price nor a cap.

    Raises UnknownPrice if a cost cannot be limited.
    """
    if not spending.prices and not spending.capped:
        return None
    models = await files.models(session, file_id)
    unpriced = tuple(model for model in models if spending.price(model) is None)
    if unpriced and spending.max_cost is not None:
        names = ", ".join(f'"{model}"' for model in unpriced[:_MAX_NAMED])
        raise UnknownPrice(
            f"--max-cost: there is no price for model {names}; add [[prices]] to batchline.toml,"
            " or use --max-tokens"
        )
    wanted = {*models, ANY_PRICE}
    prices = {model: price for model, price in spending.prices.items() if model in wanted}
    return replace(spending, prices=prices, unpriced=unpriced[:_MAX_NAMED])


async def with_learned_input(session: Session, tenant: str, file_id: UUID, spending: Spending) -> Spending:
    """Reserve more input if earlier requests of the same models had more tokens than is assumed."""
    learned = await forecasts.learned(session, tenant, await files.models(session, file_id))
    lowest = min(
        (each.bytes / each.input_tokens for each in learned.values()), default=spending.bytes_per_token
    )
    return replace(spending, bytes_per_token=min(spending.bytes_per_token, lowest))


async def cost_of(session: Session, batch: Batch) -> BatchCost | None:
    """None if the batch has neither prices nor caps."""
    spending = batch.settings.spending
    if spending is None:
        return None
    holds = await budgets.holds(session, batch.id) if spending.capped else _NO_HOLDS
    return BatchCost(batch, spending, holds)


def cost_object(cost: BatchCost | None) -> dict[str, Any] | None:
    """As the API, `--json` and the summary of a batch show it. Amounts are in dollars."""
    if cost is None:
        return None
    spending, holds = cost.spending, cost.holds
    return {
        "currency": "USD",
        "spent": dollars(cost.batch.cost) if cost.known else None,
        "max_cost": None if spending.max_cost is None else dollars(spending.max_cost),
        "max_tokens": spending.max_tokens,
        "reserved": dollars(holds.reserved.cost),
        "reserved_tokens": holds.reserved.tokens,
        "unconfirmed": dollars(holds.unconfirmed.cost),
        "unconfirmed_tokens": holds.unconfirmed.tokens,
        "overshoot": dollars(cost.over_cost),
        "overshoot_tokens": cost.over_tokens,
        "unpriced_models": list(spending.unpriced),
    }
