"""What an upstream's answers mean for an item, as its operation says."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from batchline.governance.expressions import Expression, InvalidExpression


class InvalidOutcome(ValueError):
    """The operator's mistake. The message is for a person."""


class Means(StrEnum):
    """What an upstream's answer means for the item."""

    DONE = "done"
    RETRY = "retry"
    FAILED = "failed"
    # Done if what is there is what was asked for, failed if not: `confirm` says where to look.
    SAME = "same"


@dataclass(frozen=True)
class Outcome:
    """What answers of one status mean. `when` is an expression over {item, answer}: a status may have several
    outcomes, of which the first that holds counts."""

    status: int
    means: Means
    when: str | None = None

    def __post_init__(self) -> None:
        if not 100 <= self.status <= 599:
            raise InvalidOutcome(f"{self.status} is no status of HTTP")
        if self.when is not None:
            _ = self._when

    @cached_property
    def _when(self) -> Expression:
        try:
            return Expression(self.when or "")
        except InvalidExpression as error:
            raise InvalidOutcome(f"{self.when!r} is no JMESPath expression: {error}") from None

    def holds(self, status: int, item: Any, answer: Any) -> bool:
        if status != self.status:
            return False
        return self.when is None or self._when.holds({"item": item, "answer": answer})
