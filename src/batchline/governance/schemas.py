"""The JSON Schema (2020-12) of an operation's items: checked at the start, and then every item held to it.

Patterns are matched in linear time, with ECMA's meaning of `^` and `$`; those that cannot be are refused at
the start. Nothing is fetched from anywhere.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError, ValidationErrorKind

from batchline.secrets.masking import is_secret_name, masked_text

MAX_FAULTS = 20
"""One item may be wrong in many ways: a person reads the first few."""

# Of each item, before they are sorted.
_MAX_ERRORS = 100
_MAX_MESSAGE = 300
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

    position: str
    message: str


class ItemSchema:
    """What an item looks like, and which of its fields are secret."""

    def __init__(self, schema: Mapping[str, Any], redact: Collection[str] = ()) -> None:
        self.schema = dict(schema)
        self.redact = tuple(redact)
        self._validator = _validator(self.schema)

    def faults(self, items: Sequence[Any]) -> list[ItemFault]:
        """What is wrong with these items, the first few of it.

        The time this takes may be exponential in a schema that refers to itself, and so may the memory.
        """
        found = (fault for number, item in enumerate(items) for fault in self._of_item(number, item))
        return list(islice(found, MAX_FAULTS))

    def has(self, name: str) -> bool:
        """Whether it names this field."""
        properties = self.schema.get("properties")
        return isinstance(properties, Mapping) and name in properties

    def strangers(self, names: Collection[str]) -> list[str]:
        """Those of the names that no item has; none where the schema does not name all that an item may."""
        if not isinstance(self.schema.get("properties"), Mapping) or _NAMING.intersection(self.schema):
            return []
        return sorted(name for name in set(names) if not self.has(name))

    def _of_item(self, number: int, item: Any) -> Iterator[ItemFault]:
        position = f"items[{number}]"
        if not isinstance(item, dict):
            yield ItemFault(position, "must be an object")
            return
        # To say yes or no is much cheaper than to say why.
        if self._validator.is_valid(item):
            return
        errors = list(islice(self._validator.iter_errors(item), _MAX_ERRORS))
        for error in sorted(errors, key=lambda error: [str(part) for part in error.instance_path]):
            yield ItemFault(position + _position(error), self._message(error))

    def _message(self, error: ValidationError) -> str:
        """Without the value where it may be a secret, or is too large to be read."""
        kind = error.kind
        path = error.instance_path
        hidden = any(isinstance(part, str) and is_secret_name(part, self.redact) for part in path)
        plain = isinstance(error.instance, str | int | float) or error.instance is None
        if (plain and not hidden) or kind.name in _ABOUT_NAMES:
            # Masked before it is cut: half a secret may not look like one.
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
        raise InvalidSchema(f"is no JSON Schema: {error}") from None
    if schema.get("type", "object") != "object":
        raise InvalidSchema("an item is an object, and the schema says something else")
    return validator


def _invalid(error: ValidationError) -> InvalidSchema:
    where = "".join(f"[{part!r}]" for part in error.instance_path)
    match error.kind:
        case ValidationErrorKind.Referencing():
            return InvalidSchema(f"there is nothing at a $ref: {error.message}")
        case ValidationErrorKind.Format(format="regex"):
            return InvalidSchema(
                f"the pattern at {where} cannot be used: {error.message}. Patterns are matched in linear"
                " time: write one without look-around and back-references"
            )
        case _:
            return InvalidSchema(f"is no JSON Schema{where and ' at '}{where}: {error.message}")


def _limit(kind: ValidationErrorKind) -> str:
    """What the rule asks for, where that is short."""
    value = kind.value
    return f" {value}" if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _position(error: ValidationError) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
