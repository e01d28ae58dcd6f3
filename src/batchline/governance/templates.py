"""Templates that turn an item into an HTTP request.

`{name}` is a field of the item, `{spec.size}` a nested field, `{{` and `}}` are braces. A value cannot change
the structure of the request: in a path it is percent-encoded and cannot add or leave a segment; in a query or
header it cannot end its value. In a body, a template that is only a field keeps the type of the field.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from batchline.model.json_limits import MAX_DEPTH, is_too_deep

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Set by Batchline, or able to change where the request ends.
_OUR_HEADERS = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_MISSING: Any = object()
ITEM = "{}"
"""As a body: the unchanged item."""


class InvalidTemplate(ValueError):
    """The operator's template is not valid. The message is for a person."""


class InvalidValue(ValueError):
    """A value of the item does not fit its position in the template. The message is for a person and contains
    no value."""


@dataclass(frozen=True, slots=True)
class Template:
    """Alternating literals and fields."""

    parts: tuple[tuple[str, tuple[str, ...] | None], ...]

    @classmethod
    def parse(cls, text: str) -> "Template":
        try:
            found = list(string.Formatter().parse(text))
        except ValueError as error:
            raise InvalidTemplate(f"{text!r} is not a template: {error}") from None
        parts = []
        for literal, name, spec, conversion in found:
            if name is not None and (spec or conversion or not all(name.split("."))):
                raise InvalidTemplate(
                    f"{text!r} is not a template: write a field as {{name}} or {{name.part}}"
                )
            parts.append((literal, None if name is None else tuple(name.split("."))))
        return cls(tuple(parts))

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        return tuple(path for _, path in self.parts if path is not None)

    @property
    def alone(self) -> tuple[str, ...] | None:
        """The field, if the template is only a field."""
        if len(self.parts) == 1 and not self.parts[0][0]:
            return self.parts[0][1]
        return None

    def literals(self) -> str:
        return "".join(literal for literal, _ in self.parts)


@dataclass(frozen=True, slots=True)
class Rendered:
    """One request. The path and the query are encoded; the query has no question mark."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    content_type: str


@dataclass(frozen=True)
class RequestTemplate:
    """`upstream` is a name in the settings. `body` is None for no body, ITEM for the item, a structure whose
    strings are templates, or a function of the item. In a structure, keys with missing fields are left
    out."""

    upstream: str
    path: str
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = ITEM
    content_type: str = "application/json"

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidTemplate(f"the method must be one of {', '.join(METHODS)}")
        if not _is_header_value(self.content_type):
            raise InvalidTemplate("the content type must be printable ASCII without spaces at its ends")
        literals = self._path.literals()
        if not self.path.startswith("/") or any(sign in literals for sign in "?#\\") or "//" in self.path:
            raise InvalidTemplate("the path must begin with / and must not contain ?, #, \\ or //")
        if not literals.isprintable():
            raise InvalidTemplate("the path must contain only printable characters")
        if any(_is_dots(segment) for segment in self.path.split("/")):
            raise InvalidTemplate("the path must not have segments of only dots")
        for name in self.headers:
            if not name.isascii() or not all(sign.isalnum() or sign in "-_" for sign in name) or not name:
                raise InvalidTemplate(f"{name!r} is not a valid header name")
            if name.lower() in _OUR_HEADERS:
                raise InvalidTemplate(f"templates must not set the header {name}")
        # Parsed here, so that mistakes are found at start-up.
        _ = self._query, self._headers
        _check_body(self.body)

    @cached_property
    def _path(self) -> Template:
        return Template.parse(self.path)

    @cached_property
    def _query(self) -> dict[str, Template]:
        return {name: Template.parse(text) for name, text in self.query.items()}

    @cached_property
    def _headers(self) -> dict[str, Template]:
        return {name: Template.parse(text) for name, text in self.headers.items()}

    @property
    def fields(self) -> frozenset[str]:
        """The top-level fields of the item that the path needs."""
        return frozenset(path[0] for path in self._path.fields)

    def render(self, item: Mapping[str, Any]) -> Rendered:
        body = self._rendered_body(item)
        return Rendered(
            self.method,
            rendered_path(self._path, item),
            urlencode(
                [pair for name, template in self._query.items() for pair in _pairs(name, template, item)]
            ),
            tuple(
                (name, text)
                for name, template in self._headers.items()
                if (text := _header(name, template, item)) is not None
            ),
            body,
            self.content_type,
        )

    def _rendered_body(self, item: Mapping[str, Any]) -> bytes | None:
        body = _body(self.body, item)
        if body is _MISSING:
            return None
        try:
            text = msgspec.json.encode(body)
        except RecursionError:
            text = None
        if text is None or is_too_deep(text):
            raise InvalidValue(f"the request would be nested more than {MAX_DEPTH} levels deep")
        return text


def rendered_path(template: Template, item: Mapping[str, Any]) -> str:
    """The path with percent-encoded values. A slash in a value is refused, not encoded, because some proxies
    decode %2F before they check the path."""
    texts = []
    for literal, path in template.parts:
        texts.append(quote(literal, safe="/:@!$&'()*+,;=-._~%"))
        if path is not None:
            text = _text(path, item)
            if not text or any(sign in text for sign in "/\\") or not text.isprintable():
                raise InvalidValue(
                    f"{'.'.join(path)} cannot be used in a path: it is empty or contains a slash"
                )
            texts.append(quote(text, safe=""))
    rendered = "".join(texts)
    if any(_is_dots(segment) for segment in rendered.split("/")):
        raise InvalidValue(
            f"{', '.join('.'.join(path) for path in template.fields)} must not be only dots in a path"
        )
    return rendered


def value_of(path: tuple[str, ...], item: Mapping[str, Any]) -> Any:
    value: Any = item
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _text(path: tuple[str, ...], item: Mapping[str, Any]) -> str:
    value = value_of(path, item)
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _ if value is _MISSING or value is None:
            raise InvalidValue(f"{'.'.join(path)} is missing")
        case _:
            raise InvalidValue(f"{'.'.join(path)} must be a string or a number")


def _filled(template: Template, item: Mapping[str, Any]) -> str:
    return "".join(literal + ("" if path is None else _text(path, item)) for literal, path in template.parts)


def _pairs(name: str, template: Template, item: Mapping[str, Any]) -> list[tuple[str, str]]:
    alone = template.alone
    if alone is not None and value_of(alone, item) in (_MISSING, None):
        return []
    return [(name, _filled(template, item))]


def _header(name: str, template: Template, item: Mapping[str, Any]) -> str | None:
    alone = template.alone
    if alone is not None and value_of(alone, item) in (_MISSING, None):
        return None
    text = _filled(template, item)
    if not _is_header_value(text):
        raise InvalidValue(f"the item's value for the header {name} must be printable ASCII")
    return text


def _check_body(body: Any) -> None:
    match body:
        case str() if body != ITEM:
            Template.parse(body)
        case Mapping():
            for each in body.values():
                _check_body(each)
        case list() | tuple():
            for each in body:
                _check_body(each)


def _body(body: Any, item: Mapping[str, Any]) -> Any:
    """_MISSING: the request has no body."""
    match body:
        case None:
            return _MISSING
        case str() if body == ITEM:
            return item
        case _ if callable(body):
            return body(item)
        case _:
            return _value(body, item)


def _value(body: Any, item: Mapping[str, Any]) -> Any:
    match body:
        case str():
            template = Template.parse(body)
            alone = template.alone
            return _filled(template, item) if alone is None else value_of(alone, item)
        case Mapping():
            filled = {name: _value(each, item) for name, each in body.items()}
            return {name: each for name, each in filled.items() if each is not _MISSING}
        case list() | tuple():
            return [each for each in (_value(part, item) for part in body) if each is not _MISSING]
        case _:
            return body


def _is_dots(segment: str) -> bool:
    return bool(segment) and not segment.replace("%2e", ".").replace("%2E", ".").strip(".")


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip()
