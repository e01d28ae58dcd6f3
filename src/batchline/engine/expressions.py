"""JMESPath expressions of operators: over an item, or over an item and the answer to it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError


class InvalidExpression(ValueError):
    """It is no JMESPath expression. The message is for a person, in one line."""


class Expression:
    """Read once, and asked of many items."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled: Any = jmespath.compile(text)
        except JMESPathError as error:
            raise InvalidExpression(" ".join(str(error).split())) from None

    def holds(self, value: Any, *, otherwise: bool = False) -> bool:
        """Whether it is true of a value; `otherwise` where it cannot be applied to it, such as a function of
        texts over what is none."""
        try:
            return is_true(self._compiled.search(value))
        except JMESPathError:
            return otherwise

    @property
    def alone(self) -> str | None:
        """The one field that the expression is, if it is nothing else."""
        parsed = self._compiled.parsed
        return str(parsed["value"]) if parsed["type"] == "field" else None

    @property
    def fields(self) -> frozenset[str]:
        """The value's own fields that it looks at."""
        return frozenset(_roots(self._compiled.parsed))


def is_true(value: Any) -> bool:
    """As JMESPath has it: 0 is true, and what is empty is not."""
    return not (value is None or value is False or value in ("", [], {}))


# Where the rest of an expression is about what its first part gave, not about the item.
_NARROWING = frozenset(
    {
        "subexpression",
        "index_expression",
        "projection",
        "filter_projection",
        "value_projection",
        "flatten",
        "pipe",
    }
)


def _roots(node: Mapping[str, Any]) -> Iterator[str]:
    """The item's own fields that a parsed expression looks at."""
    children: Sequence[Any] = node.get("children", ())
    if node.get("type") == "field":
        yield node["value"]
        return
    if node.get("type") == "expref":
        return
    for child in children[:1] if node.get("type") in _NARROWING else children:
        if isinstance(child, Mapping):
            yield from _roots(child)
