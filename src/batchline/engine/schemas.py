"""The JSON Schema (2020-12) of an operation's items: checked at the start, and then every item held to it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry as Schemas
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from batchline.engine.masking import is_secret_name, masked_text

_MOST_MESSAGE = 300
# What these say names fields that are missing or too many, and holds no values.
_ABOUT_NAMES = ("required", "additionalProperties", "dependentRequired", "unevaluatedProperties")

# With these in a schema, its `properties` are not all that an item may have.
_NAMING = frozenset(
    {
        "$dynamicRef",
        "$ref",
        "allOf",
        "anyOf",
        "dependentSchemas",
        "else",
        "if",
        "oneOf",
        "patternProperties",
        "then",
    }
)


class InvalidSchema(ValueError):
    """The operator's mistake. The message is for a person."""


@dataclass(frozen=True, slots=True)
class ItemFault:
    """What is wrong with an item, and where: `items[3].cpu`. The message holds no secret."""

    place: str
    message: str


class ItemSchema:
    """What an item looks like, and which of its fields are secret."""

    def __init__(self, schema: Mapping[str, Any], redact: Collection[str] = ()) -> None:
        _check(schema)
        self._schema = schema
        self._redact = redact
        # With a registry of its own nothing is fetched from anywhere.
        self._validator = Draft202012Validator(
            dict(schema), registry=Schemas(), format_checker=Draft202012Validator.FORMAT_CHECKER
        )

    def faults(self, place: str, item: Any) -> Iterator[ItemFault]:
        if not isinstance(item, dict):
            yield ItemFault(place, "must be an object")
            return
        for error in sorted(
            self._validator.iter_errors(item), key=lambda error: [str(part) for part in error.path]
        ):
            yield ItemFault(place + _place(error), self._message(error))

    def has(self, name: str) -> bool:
        """Whether it names this field."""
        properties = self._schema.get("properties")
        return isinstance(properties, Mapping) and name in properties

    def strangers(self, names: Collection[str]) -> list[str]:
        """Those of the names that no item has; none where the schema does not name all that an item may."""
        if not isinstance(self._schema.get("properties"), Mapping) or _NAMING.intersection(self._schema):
            return []
        return sorted(name for name in set(names) if not self.has(name))

    def _message(self, error: ValidationError) -> str:
        """Without the value where it may be a secret, or is too large to be read."""
        hidden = any(isinstance(part, str) and is_secret_name(part, self._redact) for part in error.path)
        plain = isinstance(error.instance, str | int | float) or error.instance is None
        if (plain and not hidden) or error.validator in _ABOUT_NAMES:
            return masked_text(str(error.message))[:_MOST_MESSAGE]
        rule = "" if isinstance(error.validator_value, dict | list) else f" {error.validator_value}"
        return f"does not meet {error.validator}{rule}"[:_MOST_MESSAGE]


def _check(schema: Mapping[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        where = "".join(f"[{part!r}]" for part in error.path)
        raise InvalidSchema(f"is no JSON Schema{where and ' at '}{where}: {error.message}") from None
    if schema.get("type", "object") != "object":
        raise InvalidSchema("an item is an object, and the schema says something else")
    resolver = Schemas().resolver_with_root(DRAFT202012.create_resource(dict(schema)))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise InvalidSchema(f"there is nothing at $ref {reference!r}") from None


def _place(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.path)


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for name, each in schema.items():
            if name == "$ref" and isinstance(each, str):
                yield each
            else:
                yield from _references(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            yield from _references(each)
