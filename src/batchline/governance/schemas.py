"""Checks items against the JSON Schema (2020-12) of their operation. The schema is checked at start-up.

Patterns are matched in linear time, with ECMA's meaning of `^` and `$`. Patterns that need more time are
refused at start-up. Remote references are not fetched.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError, ValidationErrorKind

from batchline.secrets.masking import is_secret_name, masked_text

MAX_FAULTS = 20
"""An item may have many faults, but a person reads only the first few."""

# Per item, before they are sorted.
_MAX_ERRORS = 100
_MAX_MESSAGE = 300
# Messages of these rules contain names of fields, but no values.
_ABOUT_NAMES = ("required", "additionalProperties", "dependentRequired", "unevaluatedProperties")

# A schema with one of these may allow fields that are not in its `properties`.
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
    """The operator's schema is not valid. The message is for a person."""


@dataclass(frozen=True, slots=True)
class ItemFault:
    """A fault of an item and its position, such as `items[3].cpu`. The message contains no secret."""

    position: str
    message: str


class ItemSchema:
    """A schema, and the names of secret fields."""

    def __init__(self, schema: Mapping[str, Any], redact: Collection[str] = ()) -> None:
        self.schema = dict(schema)
        self.redact = tuple(redact)
        self._validator = _validator(self.schema)

    def faults(self, items: Sequence[Any]) -> list[ItemFault]:
        """The first few faults of these items.

        A schema that refers to itself may need exponential time and memory.
        """
        found = (fault for number, item in enumerate(items) for fault in self._of_item(number, item))
        return list(islice(found, MAX_FAULTS))

    def has(self, name: str) -> bool:
        """Whether the schema has this field."""
        properties = self.schema.get("properties")
        return isinstance(properties, Mapping) and name in properties

    def unknown(self, names: Collection[str]) -> list[str]:
        """Names that are not in the schema; empty if the schema allows other fields, too."""
        if not isinstance(self.schema.get("properties"), Mapping) or _NAMING.intersection(self.schema):
            return []
        return sorted(name for name in set(names) if not self.has(name))

    def _of_item(self, number: int, item: Any) -> Iterator[ItemFault]:
        position = f"items[{number}]"
        if not isinstance(item, dict):
            yield ItemFault(position, "must be an object")
            return
        # Much cheaper than to find the errors.
        if self._validator.is_valid(item):
            return
        errors = list(islice(self._validator.iter_errors(item), _MAX_ERRORS))
        for error in sorted(errors, key=lambda error: [str(part) for part in error.instance_path]):
            yield ItemFault(position + _position(error), self._message(error))

    def _message(self, error: ValidationError) -> str:
        """Without the value if it may be secret or is large."""
        kind = error.kind
        path = error.instance_path
        hidden = any(isinstance(part, str) and is_secret_name(part, self.redact) for part in path)
        plain = isinstance(error.instance, str | int | float) or error.instance is None
        if (plain and not hidden) or kind.name in _ABOUT_NAMES:
            # Masked before it is cut, because half a secret may not look like one.
            return masked_text(error.message[: 10 * _MAX_MESSAGE])[:_MAX_MESSAGE]
        return f"does not meet {kind.name}{_limit(kind)}"[:_MAX_MESSAGE]


def _validator(schema: dict[str, Any]) -> Draft202012Validator:
    try:
        validator = Draft202012Validator(
            schema, validate_formats=True, offline=True, pattern_options=RegexOptions()
        )
    except ValidationError as error:
        raise _invalid(error) from None
    except ValueError as error:
        raise InvalidSchema(f"is not a JSON Schema: {error}") from None
    if schema.get("type", "object") != "object":
        raise InvalidSchema("the type must be object, because items are objects")
    return validator


def _invalid(error: ValidationError) -> InvalidSchema:
    where = "".join(f"[{part!r}]" for part in error.instance_path)
    match error.kind:
        case ValidationErrorKind.Referencing():
            return InvalidSchema(f"a $ref cannot be resolved: {error.message}")
        case ValidationErrorKind.Format(format="regex"):
            return InvalidSchema(
                f"the pattern at {where} cannot be matched in linear time: {error.message}. Write it"
                " without look-around and back-references"
            )
        case _:
            return InvalidSchema(f"is not a JSON Schema{where and ' at '}{where}: {error.message}")


def _limit(kind: ValidationErrorKind) -> str:
    """The value of the rule, if it is short."""
    value = kind.value
    return f" {value}" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _position(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
