"""Prepares submissions: checks items, encodes them, and masks them for the audit log.

The submitter's items determine how long this takes. So a server prepares in a few threads, of which a tenant
gets only some, and checks schemas in separate processes. A command prepares in its own thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from batchline.files.parsing import MAX_CHARACTERS, has_control_characters
from batchline.governance.errors import InvalidSubmission, TooLarge
from batchline.governance.operations import Operation, SchemaFaults
from batchline.governance.schemas import ItemFault, ItemSchema
from batchline.governance.validator import ValidationTooLong, Validators
from batchline.model.json_limits import MAX_DEPTH, is_too_deep
from batchline.secrets.masking import TooManySecrets, secrets_of
from batchline.store.operations import Children

# Items in one audit record.
MAX_AUDITED_ITEMS = 100

_THREADS = 2
_THREADS_PER_TENANT = 1

T = TypeVar("T")


class Prepared(msgspec.Struct, frozen=True):
    """Valid, encoded items."""

    operation: str
    bodies: tuple[str, ...]
    # None: children are numbered.
    custom_ids: tuple[str, ...] | None
    needs_approval: bool
    # The first items, without secrets, as JSON.
    displayed: msgspec.Raw

    def children(self, first: int = 1) -> Children:
        """Children without custom_ids are numbered from `first`."""
        numbers = range(first, first + len(self.bodies))
        return Children(self.custom_ids or tuple(map(str, numbers)), self.bodies)


class Preparing(Protocol):
    """Runs the preparation somewhere."""

    async def run(self, tenant: str, act: Callable[[SchemaFaults], T]) -> T:
        """The result of `act`, which is called with the function that checks schemas."""
        ...


class PreparingHere:
    """In this thread, for commands."""

    async def run(self, tenant: str, act: Callable[[SchemaFaults], T]) -> T:
        return act(ItemSchema.faults)


class PreparingPool:
    """In threads and processes, for servers."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "prepare")
        self._validators = Validators()
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, tenant: str, act: Callable[[SchemaFaults], T]) -> T:
        share = self._shares.get(tenant)
        if share is None:
            self._shares[tenant] = share = asyncio.Semaphore(_THREADS_PER_TENANT)
        async with share:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, act, self._validators.faults)

    async def close(self) -> None:
        self._validators.close()
        await asyncio.to_thread(self._threads.shutdown)


def prepare(
    operation: Operation,
    items: Sequence[Any],
    custom_ids: Sequence[str] | None,
    schema_faults: SchemaFaults = ItemSchema.faults,
) -> Prepared:
    """Raises InvalidSubmission and TooLarge."""
    if not items:
        raise InvalidSubmission("items must contain at least one item.", param="items")
    if len(items) > operation.largest_batch:
        raise too_many(operation, len(items))
    _check_custom_ids(custom_ids, len(items))
    bodies = tuple(_body(number, item) for number, item in enumerate(items))
    try:
        faults = operation.faults(items, schema_faults) or _secret_faults(operation, items)
    except ValidationTooLong as error:
        raise InvalidSubmission(str(error), param="items") from None
    if faults:
        listed = "; ".join(f"{fault.position}: {fault.message}" for fault in faults)
        raise InvalidSubmission(f"Invalid items: {listed}", param=faults[0].position)
    return Prepared(
        operation.name,
        bodies,
        tuple(custom_ids) if custom_ids else None,
        any(operation.needs_approval(item) for item in items),
        msgspec.Raw(msgspec.json.encode(operation.masked(list(items[:MAX_AUDITED_ITEMS])))),
    )


def too_many(operation: Operation, items: int) -> TooLarge:
    return TooLarge(
        f"The batch would have {items} items; {operation.name} allows at most {operation.largest_batch}.",
        param="items",
    )


def not_encodable() -> InvalidSubmission:
    return InvalidSubmission(
        f"An item is nested more than {MAX_DEPTH} levels deep, or contains text that is not Unicode.",
        param="items",
    )


def _body(number: int, item: Any) -> str:
    try:
        body = msgspec.json.encode(item)
    except (RecursionError, UnicodeError):
        raise not_encodable() from None
    if is_too_deep(body):
        position = f"items[{number}]"
        raise InvalidSubmission(f"{position} is nested more than {MAX_DEPTH} levels deep.", param=position)
    return body.decode()


def _check_custom_ids(custom_ids: Sequence[str] | None, items: int) -> None:
    if not custom_ids:
        return
    if len(custom_ids) != items:
        raise InvalidSubmission(
            "custom_ids must have one value per item, or be left out.", param="custom_ids"
        )
    if len(set(custom_ids)) != len(custom_ids):
        raise InvalidSubmission("custom_id values must be unique.", param="custom_ids")
    if not all(0 < len(name) <= MAX_CHARACTERS for name in custom_ids):
        raise InvalidSubmission(
            f"Each custom_id must have 1 to {MAX_CHARACTERS} characters.", param="custom_ids"
        )
    if any(map(has_control_characters, custom_ids)):
        raise InvalidSubmission("A custom_id must not contain control characters.", param="custom_ids")


def _secret_faults(operation: Operation, items: Sequence[Any]) -> list[ItemFault]:
    found = []
    for number, item in enumerate(items):
        try:
            secrets_of(item, operation.redact)
        except TooManySecrets as error:
            found.append(ItemFault(f"items[{number}]", str(error)))
    return found
