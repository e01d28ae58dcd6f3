"""How a setting is defined: once, as a field of the class that holds it."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from batchline.config.kinds import Kind

PREFIX = "BATCHLINE_"
_ABOUT = "setting"

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. Its key, and from that its flag and its variable, are named after the field."""

    kind: Kind
    help: str
    # A flag overrides the file and the environment.
    flag: bool = False
    # A shorter name for its variable. In a table, the derived name is accepted too.
    variable: str | None = None
    # False: a flag alone.
    in_file: bool = True
    # From the field.
    key: str = ""
    required: bool = False
    default: Any = None

    @property
    def flag_name(self) -> str:
        return f"--{self.key.replace('_', '-')}"

    def variables(self, table: str) -> tuple[str, ...]:
        """Its environment variables, the preferred one last. `table` is empty outside of tables."""
        derived = PREFIX + "_".join(filter(None, (table, self.key))).upper()
        return (derived,) if self.variable is None else (derived, self.variable)

    def variable_name(self, table: str = "") -> str:
        return self.variables(table)[-1]


def about(kind: Kind, help: str, **more: Any) -> Mapping[str, Setting]:
    """The metadata of a field that is a setting. For a required one, it is all that the field has."""
    return {_ABOUT: Setting(kind, help, **more)}


def setting(default: Value, kind: Kind, help: str, **more: Any) -> Value:
    """A field that is a setting with a default. Typed as its value, as `dataclasses.field` is."""
    metadata = about(kind, help, **more)
    if isinstance(default, dict):
        return cast(Value, field(default_factory=default.copy, metadata=metadata))
    return field(default=default, metadata=metadata)


def settings_of(owner: type[Any]) -> dict[str, Setting]:
    """The settings that a class defines, by key."""
    return {
        each.name: replace(
            each.metadata[_ABOUT],
            key=each.name,
            required=each.default is MISSING and each.default_factory is MISSING,
            default=each.default if each.default_factory is MISSING else each.default_factory(),
        )
        for each in fields(owner)
        if _ABOUT in each.metadata
    }
