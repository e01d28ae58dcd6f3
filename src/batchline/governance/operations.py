"""An operation, as the operator defines it: the schema of its items, the size of a batch, the number of
attempts, which items need approval, which fields are secret, and how an item becomes a request.

A batch of an operation is an ordinary batch. Its lanes have the operation's name as model and its `url` as
URL. No file of an OpenAI client can contain such a URL, so no client can bypass the rules of an operation.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

from batchline.governance.expressions import Expression, InvalidExpression
from batchline.governance.outcomes import Means, Outcome
from batchline.governance.schemas import MAX_FAULTS, InvalidSchema, ItemFault, ItemSchema
from batchline.governance.templates import InvalidTemplate, Rendered, RequestTemplate
from batchline.model import Role
from batchline.model.emission import PYTHON
from batchline.secrets.masking import TooManySecrets, masked, masked_text, secrets_of, without

ALWAYS = "always"
NEVER = "never"
DEFAULT_LARGEST = 100
DEFAULT_ATTEMPTS = 3

# Executors: requests to an upstream, decisions on other batches, and functions of a Python app.
HTTP = "http"
APPROVALS = "approvals"
FUNCTION = "python"

# Marks a role among the submitters of an operation.
ROLE_PREFIX = "role:"

# Prefix of the URLs and routing keys of lanes of operations.
BELOW = "/operations/"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")

SchemaFaults: TypeAlias = Callable[[ItemSchema, Sequence[Any]], list[ItemFault]]
"""Finds items that do not match a schema: `ItemSchema.faults`, or the same with limits."""

ItemCheck: TypeAlias = Callable[[Any], str | None]
"""What is wrong with an item that matches the schema; None: nothing."""


class InvalidOperation(ValueError):
    """The operation cannot be registered. `key` is the wrong setting; the message is for a person."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


@dataclass(frozen=True)
class Operation:
    name: str
    # None if `executor` is not http.
    request: RequestTemplate | None
    description: str = ""
    # JSON Schema (2020-12) of an item, which is always an object.
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    largest_batch: int = DEFAULT_LARGEST
    max_attempts: int = DEFAULT_ATTEMPTS
    # always, never, or a JMESPath expression over the item.
    approval: str = NEVER
    # Whether approvers and admins may approve their own submissions.
    self_approval: bool = False
    # Who may submit it: `role:ROLE`, or the name of a user. None: everybody.
    submitters: tuple[str, ...] | None = None
    # Names of secret fields, in addition to those that are always masked.
    redact: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    # Path of the object that Means.SAME compares with, at the same upstream.
    confirm: str | None = None
    # An expression over that object. If it is true, the object is being deleted and the item is retried.
    gone_when: str | None = None
    timeout: float = 60.0
    executor: str = HTTP
    # What the schema cannot express. It may quote the item.
    check: ItemCheck | None = None

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise InvalidOperation(
                "name",
                "must begin with a lower-case letter and have at most 63 lower-case letters, digits, _ and -",
            )
        if self.largest_batch < 1:
            raise InvalidOperation("largest_batch", "must be at least 1")
        if self.max_attempts < 1:
            raise InvalidOperation("max_attempts", "must be at least 1")
        self._check_submitters()
        if self.executor == HTTP and self.request is None:
            raise InvalidOperation("request", "is missing")
        # Parsed here, so that mistakes are found at start-up.
        _ = self._items
        self._check_approval()
        self._check_request()

    # --- Items ---------------------------------------------------------------------------------------------

    def faults(
        self, items: Sequence[Any], schema_faults: SchemaFaults = ItemSchema.faults
    ) -> list[ItemFault]:
        """The first few faults of these items; empty if all can run."""
        return schema_faults(self._items, items) or list(islice(self._more_faults(items), MAX_FAULTS))

    def needs_approval(self, item: Any) -> bool:
        """Whether this item needs approval before it runs."""
        if self.approval in (ALWAYS, NEVER):
            return self.approval == ALWAYS
        # If the rule cannot be applied to an item, the item needs approval.
        return self._approval.may_hold(item)

    def masked(self, value: Any) -> Any:
        """An item, or another value of this operation, without secrets."""
        return masked(value, self.redact)

    def meaning(self, status: int, item: Any, answer: Any) -> Means | None:
        """The meaning of an answer for this operation; None: the default meaning."""
        return next((each.means for each in self.outcomes if each.holds(status, item, answer)), None)

    @property
    def url(self) -> str:
        """The URL and routing key of its lanes. Only workers of Python apps claim keys of functions."""
        return PYTHON + url_of(self.name) if self.executor == FUNCTION else url_of(self.name)

    @property
    def upstream(self) -> str | None:
        return None if self.request is None else self.request.upstream

    def confirmation(self, item: Mapping[str, Any]) -> Rendered:
        """The request that reads the existing object. Only for operations with an outcome `same`."""
        assert self._confirm is not None
        return self._confirm.render(item)

    def is_going(self, found: Any) -> bool:
        return self.gone_when is not None and self._gone_when.holds(found)

    def _more_faults(self, items: Sequence[Any]) -> Iterator[ItemFault]:
        """Faults of items that match the schema, but do not fit the template or the function."""
        for number, item in enumerate(items):
            if self.request is not None:
                try:
                    self.request.render(item)
                except ValueError as error:
                    yield ItemFault(f"items[{number}]", str(error))
            if self.check is not None and (message := self.check(item)) is not None:
                yield ItemFault(f"items[{number}]", self._without_secrets(item, message))

    def _without_secrets(self, item: Any, message: str) -> str:
        try:
            return masked_text(str(without(message, secrets_of(item, self.redact))))
        except TooManySecrets:
            return "it cannot be run"

    @cached_property
    def _items(self) -> ItemSchema:
        try:
            return ItemSchema(self.schema, self.redact)
        except InvalidSchema as error:
            raise InvalidOperation("schema", str(error)) from None

    @cached_property
    def _approval(self) -> Expression:
        try:
            return Expression(self.approval)
        except InvalidExpression as error:
            raise InvalidOperation(
                "approval", f"must be {ALWAYS}, {NEVER} or a JMESPath expression: {error}"
            ) from None

    @cached_property
    def _gone_when(self) -> Expression:
        try:
            return Expression(self.gone_when or "")
        except InvalidExpression as error:
            raise InvalidOperation("gone_when", f"is not a JMESPath expression: {error}") from None

    @cached_property
    def _confirm(self) -> RequestTemplate | None:
        if self.confirm is None or self.request is None:
            return None
        try:
            return RequestTemplate(self.request.upstream, self.confirm, "GET", body=None)
        except InvalidTemplate as error:
            raise InvalidOperation("confirm", str(error)) from None

    # --- Checks at start-up --------------------------------------------------------------------------------

    def _check_submitters(self) -> None:
        for each in self.submitters or ():
            role = each.removeprefix(ROLE_PREFIX)
            if role != each and role not in list(Role):
                raise InvalidOperation("submitters", f"{each!r}: the roles are {', '.join(Role)}")

    def _check_approval(self) -> None:
        if self.approval in (ALWAYS, NEVER):
            return
        alone = self._approval.alone
        if alone is not None and not self._items.has(alone):
            # A typo such as `allways` is an expression, too: of a field that no item has.
            raise InvalidOperation(
                "approval", f"{self.approval!r} is neither {ALWAYS} nor {NEVER}, nor a field of the schema"
            )
        self._check_known("approval", self._approval.fields)

    def _check_request(self) -> None:
        if self.request is None:
            return
        self._check_known("request", self.request.fields)
        wants = any(outcome.means is Means.SAME for outcome in self.outcomes)
        if wants != (self.confirm is not None):
            raise InvalidOperation(
                "confirm", f"is required with an outcome that means {Means.SAME}, and not allowed without one"
            )
        if self._confirm is not None:
            self._check_known("confirm", self._confirm.fields)
        if self.gone_when is not None:
            _ = self._gone_when

    def _check_known(self, key: str, names: Collection[str]) -> None:
        """Refuse fields that the schema does not have. `namespace == "production"` is valid JMESPath that
        compares two fields, so the mistake would otherwise show only in items that run without approval."""
        for name in self._items.unknown(names):
            hint = f"; write a string as '{name}'" if key == "approval" else ""
            raise InvalidOperation(key, f"the schema has no field {name!r}{hint}")


def url_of(name: str) -> str:
    """The URL and routing key of the lanes of an operation that is not a function."""
    return BELOW + name


def operation_of(url: str) -> str | None:
    """The operation of a lane with this URL; None: the lane belongs to no operation."""
    return url[len(BELOW) :] if url.startswith(BELOW) else None
