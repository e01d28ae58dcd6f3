"""Prices and caps of a command, and the cost of a batch for people."""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from msgspec.structs import replace

from batchline.batches.cost import BatchCost, UnknownPrice, spending_for, spending_in, with_learned_input
from batchline.cli import options
from batchline.cli.display.console import CommandError
from batchline.cli.display.money import money
from batchline.config import DEFAULT_NAME, SettingsError, load
from batchline.model import DEFAULT_TENANT, Batch, RunSettings, Spending
from batchline.model.spending import nano_dollars
from batchline.store import batches
from batchline.store.session import Session


@dataclass(frozen=True, slots=True)
class SpendingOptions:
    max_cost: options.MaxCost = None
    max_tokens: options.MaxTokens = None
    config: options.Config = None

    def spending(self) -> Spending:
        """The prices of batchline.toml, and the caps that the user gave. Raises CommandError."""
        usual = Path(DEFAULT_NAME)
        path = self.config or (usual if usual.is_file() else None)
        try:
            settings = load(path, {}).server
        except SettingsError as error:
            raise CommandError(str(error)) from error
        cap = None if self.max_cost is None else nano_dollars(self.max_cost)
        return spending_in(settings, cap, self.max_tokens)


def with_spending(settings: RunSettings, spending: Spending) -> RunSettings:
    if settings.provider is not None and spending.capped:
        raise CommandError(
            "--max-cost and --max-tokens do not work with --provider: its tasks have no answer yet"
        )
    return replace(settings, spending=spending)


async def settings_for(session: Session, file_id: UUID, settings: RunSettings) -> RunSettings:
    """The settings with the prices that concern the models of the file."""
    if settings.spending is None:
        return settings
    try:
        spending = await spending_for(session, file_id, settings.spending)
    except UnknownPrice as error:
        raise CommandError(f"{error}; nothing was sent") from error
    if spending is not None and spending.capped:
        spending = await with_learned_input(session, DEFAULT_TENANT, file_id, spending)
    return replace(settings, spending=spending)


async def raise_caps(session: Session, batch: Batch, max_cost: float | None, max_tokens: int | None) -> None:
    """Change the caps of a batch. A cap that is not given stays."""
    if max_cost is None and max_tokens is None:
        return
    spending = batch.settings.spending or Spending()
    if max_cost is not None:
        if not spending.prices or spending.unpriced:
            raise CommandError("--max-cost: models of this batch have no price; use --max-tokens")
        spending = replace(spending, max_cost=nano_dollars(max_cost))
    if max_tokens is not None:
        spending = replace(spending, max_tokens=max_tokens)
    settings = with_spending(batch.settings, spending)
    await batches.change_settings(session, batch.id, settings)


def cost_lines(cost: BatchCost | None) -> list[str]:
    """What a batch has cost, for its status and its summary."""
    if cost is None:
        return []
    spending, holds = cost.spending, cost.holds
    lines = []
    if cost.known:
        cap = "" if spending.max_cost is None else f" of at most {money(spending.max_cost)}"
        without = f", without {', '.join(spending.unpriced)}: no price" if spending.unpriced else ""
        lines.append(f"spent: {money(cost.batch.cost)}{cap}{without}")
    if spending.max_tokens is not None:
        lines.append(f"tokens: {cost.tokens:,} of at most {spending.max_tokens:,}")
    if holds.reserved.tokens:
        lines.append(
            f"reserved for requests in flight: {_both(cost, holds.reserved.cost, holds.reserved.tokens)}"
        )
    if holds.unconfirmed.tokens:
        amount = _both(cost, holds.unconfirmed.cost, holds.unconfirmed.tokens)
        lines.append(
            f"unconfirmed: up to {amount}, for requests that may have been charged without an answer"
        )
    if cost.over_cost or cost.over_tokens:
        over = money(cost.over_cost) if cost.over_cost else f"{cost.over_tokens:,} tokens"
        lines.append(f"the cap is exceeded by {over}: requests have used more than was reserved for them")
    return lines


def _both(cost: BatchCost, nano: int, tokens: int) -> str:
    return f"{money(nano)} ({tokens:,} tokens)" if cost.known else f"{tokens:,} tokens"
