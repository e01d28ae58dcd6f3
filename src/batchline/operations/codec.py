"""Items and results as JSON, by the annotations of a function.

What was encoded can be decoded: a value is encoded and then decoded by its type before it is accepted. So a
dict may stand for a dataclass, and a tuple for a list. Types are those of msgspec. If pydantic models are
among them, pydantic converts the value. No annotation means plain JSON.

A NUL is written as an escape, so PostgreSQL can store it. NaN, infinity and halves of surrogate pairs are not
JSON, and are refused.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, get_args

import msgspec
from msgspec import inspect as types

from batchline.model.json_limits import MAX_DEPTH, is_too_deep
from batchline.operations.pydantic_types import pydantic_converter, uses_pydantic

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

MAX_KEY = 512
# Shorter JSON cannot be nested too deeply.
_MIN_DEEP = 2 * MAX_DEPTH

_encode = msgspec.json.Encoder().encode


class TypeMismatch(ValueError):
    """A value does not match its type, or is not JSON. The message is for a person."""


class UnsupportedType(TypeError):
    """Values of this type cannot be converted to JSON and back."""


class Converter(Protocol):
    """Values of one type to JSON and back. Both raise an error if a value does not match."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...

    def plain(self, value: Any) -> Any:
        """The value as lists, dicts and scalars, in which NaN can be found."""
        ...

    def schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12) of the type."""
        ...


class ItemCodec(Generic[ItemT, ResultT]):
    """Encodes and decodes the items and results of one operation. All methods raise TypeMismatch."""

    def __init__(self, item_type: Any = Any, result_type: Any = Any) -> None:
        item, result = _converter(item_type), _converter(result_type)
        # Prepared once: these are called for every item.
        self.encode_item: Callable[[ItemT], bytes] = _encoder(item)
        self.decode_item: Callable[[bytes], ItemT] = _decoder(item)
        self.encode_result: Callable[[ResultT], bytes] = _encoder(result)
        self.decode_result: Callable[[bytes], ResultT] = _decoder(result)
        self.item_schema: Callable[[], dict[str, Any]] = item.schema


def encoded_key(key: str) -> bytes:
    """The key of an item as it is stored. Raises TypeMismatch."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
        raise TypeMismatch(f"the key must be a string of 1 to {MAX_KEY} characters")
    if not key.isprintable():
        raise TypeMismatch("the key must have printable characters only")
    return key.encode()


def plain_json(value: Any) -> bytes:
    """Any value as JSON. Raises TypeMismatch."""
    return _PLAIN(value)


class _MsgspecConverter:
    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self.encode = _encode
        # `object` is any value; there is no other custom type.
        self.decode = msgspec.json.Decoder(annotation, dec_hook=lambda _, value: value).decode

    def plain(self, value: Any) -> Any:
        return msgspec.to_builtins(value)

    def schema(self) -> dict[str, Any]:
        return msgspec.json.schema(self._annotation, schema_hook=lambda _: {})


def _converter(annotation: Any) -> Converter:
    try:
        # A union that msgspec does not support may be one of pydantic's models.
        if any(map(uses_pydantic, _mentioned(annotation))):
            return pydantic_converter(annotation)
        nodes = list(_nodes(types.type_info(annotation)))
        custom = {node.cls for node in nodes if isinstance(node, types.CustomType)}
        dataclasses = {node.cls for node in nodes if isinstance(node, types.DataclassType)}
        if any(map(uses_pydantic, custom | dataclasses)):
            return pydantic_converter(annotation)
        if custom - {object}:
            names = ", ".join(sorted(cls.__name__ for cls in custom))
            raise UnsupportedType(f"{names} cannot be converted to JSON")
        return _MsgspecConverter(annotation)
    except (TypeError, NameError) as error:
        raise UnsupportedType(str(error)) from error


def _mentioned(annotation: Any) -> Iterator[type]:
    """The classes that an annotation names, without those of their fields."""
    if isinstance(annotation, type):
        yield annotation
    for argument in get_args(annotation):
        yield from _mentioned(argument)


def _encoder(converter: Converter) -> Callable[[Any], bytes]:
    encode, decode = converter.encode, converter.decode

    def encoded(value: Any) -> bytes:
        try:
            data = encode(value)
            decode(data)
        except Exception as error:
            # A class of the user may raise anything.
            raise TypeMismatch(_reason(error)) from error
        # Both libraries write null for NaN.
        if value is not None and b"null" in data and _has_no_number(converter, value):
            raise TypeMismatch("NaN and infinity are not JSON; use None or a string")
        if len(data) > _MIN_DEEP and is_too_deep(data):
            raise TypeMismatch(f"it is nested more than {MAX_DEPTH} levels deep")
        return data

    return encoded


def _decoder(converter: Converter) -> Callable[[bytes], Any]:
    decode = converter.decode

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as error:
            raise TypeMismatch(_reason(error)) from error

    return decoded


def _reason(error: Exception) -> str:
    match error:
        case UnicodeEncodeError():
            half = ord(error.object[error.start])
            return f"a text has half of a surrogate pair (U+{half:04X}), which is not UTF-8"
        case RecursionError():
            return f"it contains itself, or is nested more than {MAX_DEPTH} levels deep"
        case msgspec.MsgspecError() | TypeError() | ValueError():
            return str(error)
        case _:
            return f"{type(error).__name__}: {error}"


def _has_no_number(converter: Converter, value: Any) -> bool:
    return any(
        isinstance(scalar, float) and not math.isfinite(scalar) for scalar in _scalars(converter.plain(value))
    )


def _scalars(value: Any) -> Iterator[Any]:
    match value:
        case dict():
            for each in value.values():
                yield from _scalars(each)
        case list() | tuple() | set() | frozenset():
            for each in value:
                yield from _scalars(each)
        case _:
            yield value


def _nodes(info: Any) -> Iterator[Any]:
    """The type and all types inside it, each once: a type may contain itself."""
    pending, seen = [info], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, list | tuple):
            pending.extend(node)
        elif isinstance(node, types.Type | types.Field):
            yield node
            pending.extend(getattr(node, name) for name in node.__struct_fields__)


_PLAIN = _encoder(_MsgspecConverter(Any))
