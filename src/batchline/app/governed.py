"""Python operations as governed ones: the schema of their items comes from their types."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import msgspec

from batchline.governance.operations import FUNCTION, InvalidOperation, ItemCheck, Operation
from batchline.operations.codec import TypeMismatch
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage
from batchline.operations.operation import AnyOperation
from batchline.operations.pydantic_types import without_inputs

GovernedT = TypeVar("GovernedT", bound=AnyOperation)

_DEFINITION = "#/$defs/"
# Its result would go where the rules of a governed batch do not reach.
_REFUSED = ("emits", "collects", "sink")


class GovernedKeywords(TypedDict, total=False):
    """The rules of a governed operation, with the names and defaults of batchline.toml."""

    # always, never, or a JMESPath expression over the item.
    approval: str
    # Whether approvers and admins may approve their own submissions.
    self_approval: bool
    # Who may submit it: `role:ROLE`, or the name of a user.
    submitters: Sequence[str] | None
    # Names of secret fields, in addition to those that are always masked.
    redact: Sequence[str]
    largest_batch: int
    # Default: the first line of the docstring of the function.
    description: str


class GovernedCatalog:
    """The governed operations of an app, by name."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}

    def __iter__(self) -> Iterator[Operation]:
        return iter(list(self._operations.values()))

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: Operation) -> None:
        """One that is defined again replaces the other, as the operation itself does."""
        self._operations[operation.name] = operation

    def keys_of(self, operation: AnyOperation) -> tuple[str, ...]:
        """The routing keys of items that this operation runs."""
        governed = self._operations.get(operation.name)
        return (operation.url,) if governed is None else (operation.url, governed.url)


def governed_operation(operation: AnyOperation, keywords: GovernedKeywords) -> Operation:
    """Raises InvalidApp, and TypeError for unknown keywords."""
    if unknown := keywords.keys() - GovernedKeywords.__annotations__.keys():
        raise TypeError(f"governed takes no keyword {sorted(unknown)[0]!r}")
    options = operation.options
    if isinstance(operation, HttpStage):
        raise InvalidApp(f"{operation.name!r} is a stage of batchline.toml, so it cannot be governed")
    if refused := [name for name in _REFUSED if getattr(options, name)]:
        raise InvalidApp(f"operation {operation.name!r} has {refused[0]}, so it cannot be governed")
    rules: dict[str, Any] = dict(keywords)
    for name in ("submitters", "redact"):
        if isinstance(rules.get(name), str):
            raise InvalidApp(f"operation {operation.name!r}: {name} must be a list: [{rules[name]!r}]")
        if rules.get(name) is not None:
            rules[name] = tuple(rules[name])
    if options.timeout is not None:
        rules["timeout"] = options.timeout
    try:
        return Operation(
            name=operation.name,
            request=None,
            schema=_object_schema(operation),
            max_attempts=options.max_attempts,
            executor=FUNCTION,
            check=_check(operation),
            **{"description": _summary(operation), **rules},
        )
    except InvalidOperation as error:
        raise InvalidApp(f"operation {operation.name!r} cannot be governed: {error}") from error


def _object_schema(operation: AnyOperation) -> Mapping[str, Any]:
    """The schema of its items. A reference at the top is replaced: rules look for its fields."""
    try:
        schema = operation.codec.item_schema()
    except Exception as error:
        # Both libraries raise errors of many kinds for types without a schema.
        raise InvalidApp(f"operation {operation.name!r}: its items have no JSON Schema: {error}") from error
    reference = schema.get("$ref", "")
    if reference.startswith(_DEFINITION):
        definitions = schema["$defs"]
        name = reference.removeprefix(_DEFINITION)
        found = dict(definitions[name])
        # A type may contain itself.
        named = {other: each for other, each in definitions.items() if other != name}
        if reference.encode() in msgspec.json.encode(definitions):
            named[name] = definitions[name]
        schema = {**found, "$defs": named} if named else found
    if schema.get("type") != "object":
        raise InvalidApp(
            f"operation {operation.name!r} cannot be governed, because its items are not objects: annotate"
            " its first parameter with a dataclass, a model, a TypedDict or a dict"
        )
    return schema


def _check(operation: AnyOperation) -> ItemCheck:
    """The types of the app decide, too: a class may refuse what its schema allows."""

    def check(item: Any) -> str | None:
        try:
            operation.codec.decode_item(msgspec.json.encode(item))
        except TypeMismatch as error:
            return without_inputs(str(error))
        return None

    return check


def _summary(operation: AnyOperation) -> str:
    lines = (operation.function.__doc__ or "").strip().splitlines()
    return lines[0].strip() if lines else ""
