"""A cache of prompts' beginnings, as vLLM has one: blocks of 16 tokens, each with all that comes before it.

The blocks used least recently are evicted first, of one prompt those at its end.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from batchline.simulate.recipes import BYTES_PER_TOKEN

BLOCK_TOKENS = 16

_BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN


class _Prompt(msgspec.Struct):
    """The parts of a request that a model reads, of any endpoint, in the order of reading."""

    model: str
    instructions: msgspec.Raw = msgspec.Raw(b"")
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Prompt).decode


def prompt_of(body: bytes) -> bytes:
    """What the cache compares of a valid request: its model, in one block, and its prompt."""
    found = _decode(body)
    parts = b"".join((found.instructions, found.messages, found.prompt, found.input))
    return hashlib.shake_128(found.model.encode()).digest(_BLOCK_BYTES) + parts


class PrefixCache:
    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        # The least recently used first.
        self._blocks: dict[bytes, None] = {}

    def enter(self, prompt: bytes) -> int:
        """The number of tokens at the prompt's beginning that are cached. From now on all of it is."""
        blocks = list(_blocks(prompt))
        hits = 0
        while hits < len(blocks) and blocks[hits] in self._blocks:
            hits += 1
        for block in reversed(blocks):
            self._blocks.pop(block, None)
            self._blocks[block] = None
        self._evict()
        # The first block is the model.
        return max(0, hits - 1) * BLOCK_TOKENS

    def _evict(self) -> None:
        surplus = len(self._blocks) - self._max_blocks
        if surplus > 0:
            oldest = iter(self._blocks)
            for block in [next(oldest) for _ in range(surplus)]:
                del self._blocks[block]


def _blocks(prompt: bytes) -> Iterator[bytes]:
    """The names of the prompt's full blocks: each the digest of its tokens and of the name before."""
    name = b""
    for start in range(0, len(prompt) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        name = hashlib.blake2b(prompt[start : start + _BLOCK_BYTES], digest_size=16, key=name).digest()
        yield name
