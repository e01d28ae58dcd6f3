"""JMESPath expressions in the settings, over an item, or over an item and its answer.

JMESPath turns errors into null, which is false: `> 8` is false for a list. Such a rule would let items pass,
so `may_hold` counts an expression that meets the wrong type as true. A missing field is null and stays null.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter

# Evaluations of one node. A million take about a second.
_MAX_STEPS = 1_000_000
# Of processor time for one value.
_MAX_SECONDS = 1.0


class InvalidExpression(ValueError):
    """Not a JMESPath expression. The message is for a person, in one line."""


class NotApplicable(Exception):
    """The expression cannot be applied to this value: it has the wrong type or is too large."""


class Expression:
    """A compiled expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._compiled: Any = jmespath.compile(text)
        except JMESPathError as error:
            raise InvalidExpression(" ".join(str(error).split())) from None

    def holds(self, value: Any) -> bool:
        """Whether it is true for a value; False if it cannot be applied."""
        return self._of(value, _BoundedInterpreter(), otherwise=False)

    def may_hold(self, value: Any) -> bool:
        """Whether it is true for a value, or cannot be applied."""
        return self._of(value, _Strict(), otherwise=True)

    def _of(self, value: Any, interpreter: TreeInterpreter, *, otherwise: bool) -> bool:
        try:
            return is_true(interpreter.visit(self._compiled.parsed, value))
        except Exception:  # noqa: BLE001
            # The library also fails, for example when it compares a number with a string.
            return otherwise

    @property
    def alone(self) -> str | None:
        """The field, if the expression is only a field."""
        parsed = self._compiled.parsed
        return str(parsed["value"]) if parsed["type"] == "field" else None

    @property
    def fields(self) -> frozenset[str]:
        """The top-level fields that the expression uses."""
        return frozenset(_roots(self._compiled.parsed))


class _BoundedInterpreter(TreeInterpreter):
    """Raises NotApplicable after too many steps, or too much time: one step may search a long list."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._until = time.thread_time() + _MAX_SECONDS

    def visit(self, node: Any, *args: Any, **named: Any) -> Any:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise NotApplicable("too many steps")
        if time.thread_time() > self._until:
            raise NotApplicable("too much time")
        return super().visit(node, *args, **named)


class _Strict(_BoundedInterpreter):
    """Raises NotApplicable where JMESPath would continue with null."""

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
        """The node with its base evaluated. The base must have this type."""
        base = self.visit(node["children"][0], value)
        if base is not None and not isinstance(base, kind):
            raise NotApplicable(f"{node['type']} of {_kind(base)}")
        return _with_values(node, base)


# Types that these nodes need.
_OVER: Mapping[str, type] = {"field": dict, "index": list, "slice": list}
_ORDERING = frozenset({"lt", "lte", "gt", "gte"})
_ORDERED = frozenset({"number", "text"})


def _with_values(node: Any, *values: Any) -> Any:
    """The node with its first children replaced by their values."""
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
    """As in JMESPath: 0 is true; empty strings, lists and objects are not."""
    return not (value is None or value is False or value in ("", [], {}))


# In these, only the first child is about the item; the rest is about its result.
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
    """The top-level fields that a parsed expression uses."""
    children: Sequence[Any] = node.get("children", ())
    if node.get("type") == "field":
        yield node["value"]
        return
    if node.get("type") == "expref":
        return
    for child in children[:1] if node.get("type") in _NARROWING else children:
        if isinstance(child, Mapping):
            yield from _roots(child)
