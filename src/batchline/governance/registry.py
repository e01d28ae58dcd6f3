"""The registered operations, from packs, code or batchline.toml."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchline.config import SettingsError
from batchline.config.settings import OperationSettings, ServerSettings
from batchline.governance.operations import InvalidOperation, Operation
from batchline.governance.outcomes import InvalidOutcome, Means, Outcome
from batchline.governance.templates import InvalidTemplate, RequestTemplate


class UnknownOperation(LookupError):
    """No operation of this name is registered. The message is for a person."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no operation {name!r}")
        self.name = name


class Registry:
    """The registered operations, by name."""

    def __init__(self, operations: Sequence[Operation] = ()) -> None:
        self._operations: dict[str, Operation] = {}
        for operation in operations:
            if operation.name in self._operations:
                raise InvalidOperation("name", f"two operations have the name {operation.name!r}")
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
    """The operations in the settings, and `more`. Raises SettingsError."""
    read: list[Operation] = list(more)
    names = {operation.name for operation in read}
    for each in settings.operations:
        if each.name in names:
            raise _error(each, "name", f"another operation has the name {each.name!r}")
        names.add(each.name)
        read.append(_read(each))
    return Registry(read)


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
        outcomes = tuple(_outcome(outcome) for outcome in each.outcomes)
    except InvalidOutcome as error:
        raise _error(each, "outcomes", str(error)) from None
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
            submitters=each.submitters,
            redact=each.redact,
            outcomes=outcomes,
            confirm=each.confirm,
            gone_when=each.gone_when,
            timeout=each.timeout,
        )
    except InvalidOperation as error:
        key = "path" if error.key == "request" else error.key
        raise _error(each, key, error.why) from None


def _body_of(each: OperationSettings) -> Any:
    if each.body is not None:
        # TOML has no null: an empty string means no body.
        return None if each.body == "" else each.body
    return None if each.method in ("GET", "DELETE") else RequestTemplate.body


def _outcome(table: Mapping[str, Any]) -> Outcome:
    if unknown := set(table) - {"status", "means", "when"}:
        raise InvalidOutcome(f"unknown key {', '.join(sorted(unknown))}")
    status, means, when = table.get("status"), table.get("means"), table.get("when")
    if type(status) is not int:
        raise InvalidOutcome("status must be an integer")
    if means not in list(Means):
        raise InvalidOutcome(f"means must be one of {', '.join(Means)}")
    if when is not None and not isinstance(when, str):
        raise InvalidOutcome("when must be a string with a JMESPath expression")
    return Outcome(status, Means(means), when)


def _error(each: OperationSettings, key: str, why: str) -> SettingsError:
    return SettingsError(f"{each.position_of(key)}: operations.{each.name}.{key}: {why}")
