"""Pydantic models in items and results.

Pydantic is imported only if a type is one of its own: whoever uses such a type has imported it already.
"""

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# A model or a dataclass of pydantic has a validator; its other types have a schema.
_MARKS = ("__pydantic_validator__", "__get_pydantic_core_schema__")
# What SecretStr and the like write instead of their value.
_MASK = b"*" * 10
# What a model with ser_json_inf_nan="constants" writes.
_CONSTANTS = (b"NaN", b"Infinity")
_INPUT = re.compile(r"input_value=.*?(, input_type=|\Z)", re.DOTALL)


def uses_pydantic(cls: type) -> bool:
    return any(hasattr(cls, mark) for mark in _MARKS)


def _check_json(data: bytes) -> None:
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise ValueError("NaN and infinity are not JSON; use None or a string") from None


class _PydanticConverter:
    def __init__(self, adapter: "TypeAdapter[Any]") -> None:
        self._adapter = adapter
        self.decode = adapter.validate_json

    def encode(self, value: Any) -> bytes:
        checked = self._adapter.validate_python(value)
        data = self._adapter.dump_json(checked, by_alias=True, round_trip=True, warnings="error")
        if _MASK in data and self.decode(data) != checked:
            raise ValueError(f"a secret would be stored as {_MASK.decode()}; use str, or a serializer for it")
        if any(constant in data for constant in _CONSTANTS):
            _check_json(data)
        return data

    def plain(self, value: Any) -> Any:
        return self._adapter.dump_python(self._adapter.validate_python(value))

    def schema(self) -> dict[str, Any]:
        return self._adapter.json_schema()


def without_inputs(message: str) -> str:
    """A message without the values that pydantic quotes. It cuts long ones, and half a secret cannot be found
    in them."""
    return _INPUT.sub(r"input_value=…\1", message)


def pydantic_converter(annotation: Any) -> _PydanticConverter:
    """A converter for a type with pydantic models. Raises TypeError if pydantic does not know the type."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return _PydanticConverter(TypeAdapter(annotation))
    except PydanticUserError as error:
        problem = str(error).splitlines()[0]
        raise TypeError(
            f"pydantic cannot convert it: {problem}. Do not mix its models with others"
        ) from error
