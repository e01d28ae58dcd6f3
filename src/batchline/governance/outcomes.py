"""The meaning of an upstream's answers, as an operation defines it."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from batchline.governance.expressions import Expression, InvalidExpression


class InvalidOutcome(ValueError):
    """The operator's outcome is not valid. The message is for a person."""


class Means(StrEnum):
    """What an upstream's answer means for the item."""

    DONE = "done"
    RETRY = "retry"
    FAILED = "failed"
    # Done if the existing object, at the path `confirm`, equals the requested one; else failed.
    SAME = "same"


@dataclass(frozen=True)
class Outcome:
    """The meaning of answers with one status. `when` is an expression over {item, answer}. A status may have
    several outcomes; the first that holds counts."""

    status: int
    means: Means
    when: str | None = None

    def __post_init__(self) -> None:
        if not 100 <= self.status <= 599:
            raise InvalidOutcome(f"{self.status} is not an HTTP status")
        if self.when is not None:
            _ = self._when

    @cached_property
    def _when(self) -> Expression:
        try:
            return Expression(self.when or "")
        except InvalidExpression as error:
            raise InvalidOutcome(f"{self.when!r} is not a JMESPath expression: {error}") from None

    def holds(self, status: int, item: Any, answer: Any) -> bool:
        if status != self.status:
            return False
        return self.when is None or self._when.holds({"item": item, "answer": answer})
