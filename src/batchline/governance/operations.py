"""An operation: what users may ask for in bulk, as the operator has it.

It says what an item looks like, how many fit into one batch, how often each is tried, what has to be
approved, what is secret, and how an item becomes a request. A batch of one is an ordinary batch: its lanes
have the operation's name for a model and `url_of(name)` for a URL, which no file of an OpenAI client has, so
that nobody runs an operation past its rules.
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
from batchline.secrets.masking import masked

ALWAYS = "always"
NEVER = "never"
DEFAULT_LARGEST = 100
DEFAULT_ATTEMPTS = 3

# Executors: requests to an upstream; and decisions on other batches.
HTTP = "http"
APPROVALS = "approvals"

# What the URLs of operations' lanes begin with, and so do their routing keys.
BELOW = "/operations/"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")

SchemaFaults: TypeAlias = Callable[[ItemSchema, Sequence[Any]], list[ItemFault]]
"""Tells which items do not fit a schema: `ItemSchema.faults`, or the same within limits."""


class InvalidOperation(ValueError):
    """The operation cannot be registered. `key` is what is wrong with it; the message is for a person."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


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
        # Read here, so that a mistake is found at the start.
        _ = self._items
        self._check_approval()
        self._check_request()

    # --- Items ---------------------------------------------------------------------------------------------

    def faults(
        self, items: Sequence[Any], schema_faults: SchemaFaults = ItemSchema.faults
    ) -> list[ItemFault]:
        """What is wrong with these items, the first few of it; empty if all can be run."""
        return schema_faults(self._items, items) or list(islice(self._request_faults(items), MAX_FAULTS))

    def needs_approval(self, item: Any) -> bool:
        """Whether somebody else has to agree before this item runs."""
        if self.approval in (ALWAYS, NEVER):
            return self.approval == ALWAYS
        # A rule that cannot be applied to an item must not let it pass.
        return self._approval.may_hold(item)

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
        return self.gone_when is not None and self._gone_when.holds(found)

    def _request_faults(self, items: Sequence[Any]) -> Iterator[ItemFault]:
        """Of items that fit the schema."""
        if self.request is None:
            return
        for number, item in enumerate(items):
            try:
                self.request.render(item)
            except ValueError as error:
                yield ItemFault(f"items[{number}]", str(error))

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
            raise InvalidOperation("gone_when", f"is no JMESPath expression: {error}") from None

    @cached_property
    def _confirm(self) -> RequestTemplate | None:
        if self.confirm is None or self.request is None:
            return None
        try:
            return RequestTemplate(self.request.upstream, self.confirm, "GET", body=None)
        except InvalidTemplate as error:
            raise InvalidOperation("confirm", str(error)) from None

    # --- Checks at the start -------------------------------------------------------------------------------

    def _check_approval(self) -> None:
        if self.approval in (ALWAYS, NEVER):
            return
        alone = self._approval.alone
        if alone is not None and not self._items.has(alone):
            # A slip such as `allways` would be an expression too, of a field that no item has.
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
                "confirm", f"goes with an outcome that means {Means.SAME}, and only with one"
            )
        if self._confirm is not None:
            self._check_known("confirm", self._confirm.fields)
        if self.gone_when is not None:
            _ = self._gone_when

    def _check_known(self, key: str, names: Collection[str]) -> None:
        """`namespace == "production"` is right in JMESPath, and compares two fields: with a schema that names
        the fields of an item such slips are found here, and not by the first item that goes unapproved."""
        for name in self._items.strangers(names):
            hint = f"; a text is written '{name}'" if key == "approval" else ""
            raise InvalidOperation(key, f"the schema has no field {name!r}{hint}")


def url_of(name: str) -> str:
    """The URL of the lanes of this operation's batches, which is their routing key too."""
    return BELOW + name


def operation_of(url: str) -> str | None:
    """The operation of a lane with this URL; None: it is no operation's."""
    return url[len(BELOW) :] if url.startswith(BELOW) else None
