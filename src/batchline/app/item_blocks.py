"""Items as blocks of encoded lines. The source is read once, and only one block of it is in memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import Any

import msgspec

from batchline.operations.codec import TypeMismatch, encoded_key
from batchline.operations.errors import InvalidItem
from batchline.operations.operation import PythonOperation

# A block has about so many bytes, and at most so many items.
_BYTES, _ITEMS = 2**20, 5_000
_FIRST = 16


class SourceFailed(Exception):
    """The source of items has raised an error, or `key` has. It must not be taken for one of the database."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def errors_of_sources() -> Iterator[None]:
    """Raise the error of a source as it was."""
    try:
        yield
    except SourceFailed as failed:
        raise failed.error from failed.error.__cause__


class ItemBlock(msgspec.Struct, frozen=True):
    """Items from position `start` of their source on. `keys` is None if their positions are their keys."""

    start: int
    keys: Sequence[bytes] | None
    bodies: Sequence[bytes]
    size: int

    def __len__(self) -> int:
        return len(self.bodies)

    def custom_ids(self, first: int) -> Sequence[bytes]:
        """`first`: the position in the batch of the first item of this block."""
        if self.keys is not None:
            return self.keys
        return [b"%d" % position for position in range(first, first + len(self))]


def in_one_block(items: object) -> bool:
    """Whether these are certainly so few that they are one block. Of other sources nothing is known before
    they are read, and that may use the caller's connection."""
    return isinstance(items, Collection) and len(items) <= _FIRST


async def item_blocks(
    operation: PythonOperation[Any, Any],
    items: Iterable[Any] | AsyncIterable[Any],
    key: Callable[[Any], str] | None,
) -> AsyncGenerator[ItemBlock, None]:
    """Encode all items. Raises InvalidItem, SourceFailed, and TypeError if `items` is not iterable."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable | AsyncIterable):
        raise TypeError(f"items must be an iterable of items, not {type(items).__name__}")
    start, size = 0, _BlockSize()
    async with aclosing(_some(items, size)) as lists:
        while some := await _next(lists):
            bodies = _encoded(some, operation.codec.encode_item, start)
            keys = None if key is None else _keys(some, key, start)
            block = ItemBlock(start, keys, bodies, sum(map(len, bodies)))
            yield block
            start += len(some)
            size.learn(block)
            # Encoding never waits: let others use the event loop.
            await asyncio.sleep(0)


class _BlockSize:
    """How many items the next block has: judged by the last one, so that a block of large ones is small."""

    def __init__(self) -> None:
        self.items = _FIRST

    def learn(self, block: ItemBlock) -> None:
        fitting = len(block) * _BYTES // max(block.size, 1)
        self.items = max(1, min(4 * self.items, fitting, _ITEMS))


async def _some(
    items: Iterable[Any] | AsyncIterable[Any], size: _BlockSize
) -> AsyncGenerator[Sequence[Any], None]:
    """The items in lists."""
    if isinstance(items, AsyncIterable):
        some: list[Any] = []
        async for item in items:
            some.append(item)
            if len(some) >= size.items:
                yield some
                some = []
        if some:
            yield some
        return
    source = iter(items)
    while found := list(islice(source, size.items)):
        yield found


async def _next(lists: AsyncGenerator[Sequence[Any], None]) -> Sequence[Any] | None:
    try:
        return await anext(lists, None)
    except Exception as error:
        raise SourceFailed(error) from error


def _encoded(items: Sequence[Any], encode: Callable[[Any], bytes], start: int) -> list[bytes]:
    bodies: list[bytes] = []
    try:
        # On an error, those before it are in the list.
        bodies.extend(map(encode, items))
    except TypeMismatch as error:
        raise InvalidItem(start + len(bodies), str(error)) from error
    return bodies


def _keys(items: Sequence[Any], key: Callable[[Any], str], start: int) -> list[bytes]:
    keys: list[bytes] = []
    try:
        keys.extend(encoded_key(key(item)) for item in items)
    except TypeMismatch as error:
        raise InvalidItem(start + len(keys), str(error)) from error
    except Exception as error:
        raise SourceFailed(error) from error
    return keys


async def chained(first: ItemBlock, others: AsyncIterable[ItemBlock]) -> AsyncGenerator[ItemBlock, None]:
    """A block that was read before, and those after it."""
    yield first
    async for block in others:
        yield block
