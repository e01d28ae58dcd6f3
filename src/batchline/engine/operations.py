"""Operations: what users may ask for in bulk, registered by the operator in code or in batchline.toml.

An operation says what an item looks like, how many fit into one batch, how often each is tried, what has to
be approved, what is secret, and how an item becomes a request. A batch of one is an ordinary batch: its lanes
have the operation's name for a model and `url_of(name)` for a URL, which no file of an OpenAI client can
have, so that nobody runs an operation past its rules.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry as Schemas
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from batchline.config import OperationSettings, ServerSettings
from batchline.engine.masking import is_secret_name, masked, masked_text
from batchline.engine.templates import InvalidTemplate, Rendered, RequestTemplate
from batchline.settings_file import SettingsError

ALWAYS = "always"
NEVER = "never"
DEFAULT_LARGEST = 100
DEFAULT_ATTEMPTS = 3
HTTP = "http"

# What the URLs of operations' lanes begin with, and so do their routing keys.
BELOW = "/operations/"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
# One item may be wrong in many ways: a person reads the first few.
_MOST_FAULTS = 20
_MOST_MESSAGE = 300


class InvalidOperation(ValueError):
    """The operation cannot be registered. `key` is what is wrong with it; the message is for a person."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


class UnknownOperation(LookupError):
    """No operation of this name is registered. The message is for a person."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no operation {name!r}")
        self.name = name


@dataclass(frozen=True, slots=True)
class ItemFault:
    """What is wrong with an item, and where: `items[3].cpu`. The message holds no secret."""

    place: str
    message: str


class Means(StrEnum):
    """What an upstream's answer means for the item."""

    DONE = "done"
    RETRY = "retry"
    FAILED = "failed"
    # Done if what is there is what was asked for, failed if not: `confirm` says where to look.
    SAME = "same"


@dataclass(frozen=True)
class Outcome:
    """What answers of one status mean. `when` is an expression over {item, answer}: a status may have several
    outcomes, of which the first that holds counts."""

    status: int
    means: Means
    when: str | None = None

    def __post_init__(self) -> None:
        if not 100 <= self.status <= 599:
            raise InvalidOperation("outcomes", f"{self.status} is no status of HTTP")
        if self.when is not None:
            _ = self._when

    @cached_property
    def _when(self) -> Any:
        try:
            return jmespath.compile(self.when or "")
        except JMESPathError as error:
            raise InvalidOperation("outcomes", f"{self.when!r} is no JMESPath expression: {error}") from None

    def holds(self, status: int, item: Any, answer: Any) -> bool:
        if status != self.status:
            return False
        if self.when is None:
            return True
        try:
            return is_true(self._when.search({"item": item, "answer": answer}))
        except JMESPathError:
            # Such as a function of texts over what is none: then it does not hold.
            return False


@dataclass(frozen=True)
class Operation:
    name: str
    # None: `executor` is not http, and runs items without one.
    request: RequestTemplate | None
    description: str = ""
    # JSON Schema (2020-12) of an item, which is always an object.
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    largest_batch: int = DEFAULT_LARGEST
    max_attempts: int = DEFAULT_ATTEMPTS
    # always, never, or a JMESPath expression over the item.
    approval: str = NEVER
    # Whether approvers and admins may approve what they submitted themselves.
    self_approval: bool = False
    # Names of fields that are masked wherever items are shown, besides those that always are.
    redact: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    # Path of the object that Means.SAME compares with, below the same upstream.
    confirm: str | None = None
    # An expression over that object: it is about to go, and the item is tried again once it is gone.
    gone_when: str | None = None
    timeout: float = 60.0
    executor: str = HTTP

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidOperation(
                "name", "must begin with a small letter, and have only those, digits, _ and -, at most 63"
            )
        if self.largest_batch < 1:
            raise InvalidOperation("largest_batch", "must be at least 1")
        if self.max_attempts < 1:
            raise InvalidOperation("max_attempts", "must be at least 1")
        if self.executor == HTTP and self.request is None:
            raise InvalidOperation("request", "it is missing")
        self._check_schema()
        self._check_approval()
        self._check_request()

    # --- Items ---------------------------------------------------------------------------------------------

    def faults(self, items: Sequence[Any]) -> list[ItemFault]:
        """What is wrong with these items, the first few of it; empty if all can be run."""
        found: list[ItemFault] = []
        for number, item in enumerate(items):
            for fault in self._faults_of(f"items[{number}]", item):
                found.append(fault)
                if len(found) >= _MOST_FAULTS:
                    return found
        return found

    def needs_approval(self, item: Any) -> bool:
        """Whether somebody else has to agree before this item runs."""
        if self.approval in (ALWAYS, NEVER):
            return self.approval == ALWAYS
        try:
            return is_true(self._approval.search(item))
        except JMESPathError:
            # A rule that cannot be applied to an item must not let it pass.
            return True

    def masked(self, value: Any) -> Any:
        """An item, or anything else of this operation, as it may be shown."""
        return masked(value, self.redact)

    def meaning(self, status: int, item: Any, answer: Any) -> Means | None:
        """What the operation says of such an answer; None: nothing, so that it is judged as any other."""
        return next((each.means for each in self.outcomes if each.holds(status, item, answer)), None)

    @property
    def upstream(self) -> str | None:
        return None if self.request is None else self.request.upstream

    def confirmation(self, item: Mapping[str, Any]) -> Rendered:
        """The request that reads what is there. Only where an outcome means `same`."""
        assert self._confirm is not None
        return self._confirm.render(item)

    def is_going(self, found: Any) -> bool:
        return self.gone_when is not None and is_true(self._gone_when.search(found))

    def _faults_of(self, place: str, item: Any) -> Iterator[ItemFault]:
        if not isinstance(item, dict):
            yield ItemFault(place, "must be an object")
            return
        errors = sorted(self._validator.iter_errors(item), key=lambda error: [str(p) for p in error.path])
        for error in errors:
            yield ItemFault(place + _place(error), self._message(error))
        if errors or self.request is None:
            return
        try:
            self.request.render(item)
        except ValueError as error:
            yield ItemFault(place, str(error))

    def _message(self, error: ValidationError) -> str:
        """Without the value where it may be a secret, or is too large to be read."""
        hidden = any(isinstance(part, str) and is_secret_name(part, self.redact) for part in error.path)
        if not hidden and (isinstance(error.instance, str | int | float) or error.instance is None):
            return masked_text(str(error.message))[:_MOST_MESSAGE]
        if error.validator in (
            "required",
            "additionalProperties",
            "dependentRequired",
            "unevaluatedProperties",
        ):
            return masked_text(str(error.message))[:_MOST_MESSAGE]
        rule = "" if isinstance(error.validator_value, dict | list) else f" {error.validator_value}"
        return f"does not meet {error.validator}{rule}"[:_MOST_MESSAGE]

    @cached_property
    def _validator(self) -> Draft202012Validator:
        # With a registry of its own nothing is fetched from anywhere.
        return Draft202012Validator(
            dict(self.schema), registry=Schemas(), format_checker=Draft202012Validator.FORMAT_CHECKER
        )

    @cached_property
    def _approval(self) -> Any:
        return jmespath.compile(self.approval)

    @cached_property
    def _gone_when(self) -> Any:
        return jmespath.compile(self.gone_when or "")

    @cached_property
    def _confirm(self) -> RequestTemplate | None:
        if self.confirm is None or self.request is None:
            return None
        return RequestTemplate(self.request.upstream, self.confirm, "GET", body=None)

    # --- Checks at the start -------------------------------------------------------------------------------

    def _check_schema(self) -> None:
        try:
            Draft202012Validator.check_schema(dict(self.schema))
        except SchemaError as error:
            where = "".join(f"[{part!r}]" for part in error.path)
            raise InvalidOperation(
                "schema", f"is no JSON Schema{where and ' at '}{where}: {error.message}"
            ) from None
        if self.schema.get("type", "object") != "object":
            raise InvalidOperation("schema", "an item is an object, and the schema says something else")
        resolver = Schemas().resolver_with_root(DRAFT202012.create_resource(dict(self.schema)))
        for reference in _references(self.schema):
            try:
                resolver.lookup(reference)
            except Unresolvable:
                raise InvalidOperation("schema", f"there is nothing at $ref {reference!r}") from None

    def _check_approval(self) -> None:
        if self.approval in (ALWAYS, NEVER):
            return
        try:
            parsed = self._approval.parsed
        except JMESPathError as error:
            raise InvalidOperation(
                "approval", f"must be {ALWAYS}, {NEVER} or a JMESPath expression: {_one_line(error)}"
            ) from None
        if parsed["type"] == "field" and not self._names(parsed["value"]):
            # A slip such as `allways` would be an expression too, of a field that no item has.
            raise InvalidOperation(
                "approval", f"{self.approval!r} is neither {ALWAYS} nor {NEVER}, nor a field of the schema"
            )
        self._check_known("approval", _roots(parsed))

    def _check_request(self) -> None:
        if self.request is None:
            return
        self._check_known("request", self.request.fields)
        wants = any(outcome.means is Means.SAME for outcome in self.outcomes)
        if wants != (self.confirm is not None):
            raise InvalidOperation(
                "confirm", f"goes with an outcome that means {Means.SAME}, and only with one"
            )
        try:
            if self._confirm is not None:
                self._check_known("confirm", self._confirm.fields)
        except InvalidTemplate as error:
            raise InvalidOperation("confirm", str(error)) from None
        if self.gone_when is not None:
            try:
                _ = self._gone_when
            except JMESPathError as error:
                raise InvalidOperation(
                    "gone_when", f"is no JMESPath expression: {_one_line(error)}"
                ) from None

    def _check_known(self, key: str, names: Any) -> None:
        """`namespace == "production"` is right in JMESPath, and compares two fields: with a schema that names
        the fields of an item such slips are found here, and not by the first item that goes unapproved."""
        properties = self.schema.get("properties")
        if not isinstance(properties, Mapping) or _NAMING.intersection(self.schema):
            return
        for name in sorted(set(names)):
            if name not in properties:
                hint = f"; a text is written '{name}'" if key == "approval" else ""
                raise InvalidOperation(key, f"the schema has no field {name!r}{hint}")

    def _names(self, field: str) -> bool:
        properties = self.schema.get("properties")
        return isinstance(properties, Mapping) and field in properties


class Registry:
    """The operations that there are, by name."""

    def __init__(self, operations: Sequence[Operation] = ()) -> None:
        self._operations: dict[str, Operation] = {}
        for operation in operations:
            if operation.name in self._operations:
                raise InvalidOperation("name", f"there are two operations {operation.name!r}")
            self._operations[operation.name] = operation

    def get(self, name: str) -> Operation:
        try:
            return self._operations[name]
        except KeyError:
            raise UnknownOperation(name) from None

    def find(self, name: str) -> Operation | None:
        return self._operations.get(name)

    def all(self) -> tuple[Operation, ...]:
        return tuple(sorted(self._operations.values(), key=lambda operation: operation.name))

    def __contains__(self, name: object) -> bool:
        return name in self._operations

    def __len__(self) -> int:
        return len(self._operations)

    def __bool__(self) -> bool:
        return bool(self._operations)


def registry_of(settings: ServerSettings, more: Sequence[Operation] = ()) -> Registry:
    """The operations of the settings, and those that come with the program. Raises SettingsError."""
    read: list[Operation] = list(more)
    names = {operation.name for operation in read}
    for each in settings.operations:
        if each.name in names:
            raise _error(each, "name", f"there is an operation {each.name!r} already")
        names.add(each.name)
        read.append(_read(each))
    return Registry(read)


def url_of(name: str) -> str:
    """The URL of the lanes of this operation's batches, which is their routing key too."""
    return BELOW + name


def operation_of(url: str) -> str | None:
    """The operation of a lane with this URL; None: it is no operation's."""
    return url[len(BELOW) :] if url.startswith(BELOW) else None


def is_true(value: Any) -> bool:
    """As JMESPath has it: 0 is true, and what is empty is not."""
    return not (value is None or value is False or value in ("", [], {}))


def _read(each: OperationSettings) -> Operation:
    try:
        request = RequestTemplate(
            each.upstream,
            each.path,
            each.method,
            query=each.query,
            headers=each.headers,
            body=_body_of(each),
            content_type=each.content_type,
        )
    except InvalidTemplate as error:
        raise _error(each, "path", str(error)) from None
    try:
        return Operation(
            name=each.name,
            request=request,
            description=each.description,
            schema=each.schema,
            largest_batch=each.largest_batch,
            max_attempts=each.max_attempts,
            approval=each.approval,
            self_approval=each.self_approval,
            redact=each.redact,
            outcomes=tuple(_outcome(outcome) for outcome in each.outcomes),
            confirm=each.confirm,
            gone_when=each.gone_when,
            timeout=each.timeout,
        )
    except InvalidOperation as error:
        key = "path" if error.key == "request" else error.key
        raise _error(each, key, error.why) from None


def _body_of(each: OperationSettings) -> Any:
    if each.body is not None:
        # As TOML has no null: no body at all.
        return None if each.body == "" else each.body
    return None if each.method in ("GET", "DELETE") else RequestTemplate.body


def _outcome(table: Mapping[str, Any]) -> Outcome:
    strangers = set(table) - {"status", "means", "when"}
    if strangers:
        raise InvalidOperation("outcomes", f"there is no {', '.join(sorted(strangers))}")
    status, means, when = table.get("status"), table.get("means"), table.get("when")
    if type(status) is not int:
        raise InvalidOperation("outcomes", "each needs a status, which is a whole number")
    if means not in list(Means):
        raise InvalidOperation("outcomes", f"each means one of {', '.join(Means)}")
    if when is not None and not isinstance(when, str):
        raise InvalidOperation("outcomes", "when is an expression, as a text")
    return Outcome(status, Means(means), when)


def _error(each: OperationSettings, key: str, why: str) -> SettingsError:
    return SettingsError(f"{each.place_of(key)}: operations.{each.name}.{key}: {why}")


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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
