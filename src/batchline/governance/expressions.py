"""JMESPath expressions of operators: over an item, or over an item and the answer to it.

JMESPath turns what it cannot do into null, which is not true: "more than 8" of a list would be false. An
operator means a rule for values of the right kind, so one that meets another kind cannot be applied. Null
itself, which a field that is absent is, stays null.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

# Each is an expression's step at one value: a million take about a second.
_MAX_STEPS = 1_000_000


class InvalidExpression(ValueError):
    """It is no JMESPath expression. The message is for a person, in one line."""


class NotApplicable(Exception):
    """The expression says nothing about this value: it is of another kind, or too large."""


class Expression:
    """Read once, and asked of many items."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled: Any = jmespath.compile(text)
        except JMESPathError as error:
            raise InvalidExpression(" ".join(str(error).split())) from None

    def holds(self, value: Any) -> bool:
        """Whether it is true of a value; no, where it cannot be applied to it, such as a function of texts
        over what is none."""
        return self._of(value, _BoundedInterpreter(), otherwise=False)

    def may_hold(self, value: Any) -> bool:
        """Whether it is true of a value, or cannot be applied to it."""
        return self._of(value, _Strict(), otherwise=True)

    def _of(self, value: Any, interpreter: TreeInterpreter, *, otherwise: bool) -> bool:
        try:
            return is_true(interpreter.visit(self._compiled.parsed, value))
        except Exception:  # noqa: BLE001
            # Also where the library stumbles, say over a number compared with a text.
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


class _BoundedInterpreter(TreeInterpreter):
    """Gives up after too many steps."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def visit(self, node: Any, *args: Any, **named: Any) -> Any:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise NotApplicable("too many steps")
        return super().visit(node, *args, **named)


class _Strict(_BoundedInterpreter):
    """Raises NotApplicable where JMESPath would go on with null."""

    def visit(self, node: Any, *args: Any, **named: Any) -> Any:
        kind = _OVER.get(node["type"])
        if kind is not None and args and not (args[0] is None or isinstance(args[0], kind)):
            raise NotApplicable(f"{node['type']} of {_kind(args[0])}")
        return super().visit(node, *args, **named)

    def visit_comparator(self, node: Any, value: Any) -> Any:
        left, right = (self.visit(child, value) for child in node["children"])
        if left is not None and right is not None:
            kinds = {_kind(left), _kind(right)}
            if len(kinds) > 1 or (node["value"] in _ORDERING and not kinds <= _ORDERED):
                raise NotApplicable(f"{_kind(left)} compared with {_kind(right)}")
        return super().visit_comparator(_with_values(node, left, right), value)

    def visit_projection(self, node: Any, value: Any) -> Any:
        return super().visit_projection(self._over(list, node, value), value)

    def visit_filter_projection(self, node: Any, value: Any) -> Any:
        return super().visit_filter_projection(self._over(list, node, value), value)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        return super().visit_flatten(self._over(list, node, value), value)

    def visit_value_projection(self, node: Any, value: Any) -> Any:
        return super().visit_value_projection(self._over(dict, node, value), value)

    def _over(self, kind: type, node: Any, value: Any) -> Any:
        """The node with its base evaluated, which must be of this kind."""
        base = self.visit(node["children"][0], value)
        if base is not None and not isinstance(base, kind):
            raise NotApplicable(f"{node['type']} of {_kind(base)}")
        return _with_values(node, base)


# What is looked into by these.
_OVER: Mapping[str, type] = {"field": dict, "index": list, "slice": list}
_ORDERING = frozenset({"lt", "lte", "gt", "gte"})
_ORDERED = frozenset({"number", "text"})


def _with_values(node: Any, *values: Any) -> Any:
    """The node with its first children replaced by what they are."""
    literals = [{"type": "literal", "value": value, "children": []} for value in values]
    return {**node, "children": [*literals, *node["children"][len(values) :]]}


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
        case _:
            return type(value).__name__


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
