"""Chunks of a batch that go through a provider's batch API, as `status` shows them."""

from collections.abc import Sequence
from typing import Any

from batchline.cli.display.units import counted
from batchline.store.provider_chunks import FullProvider, ListedChunk

_DISPLAYED = 5
# Relays look for chunks more often than this, in seconds.
_TAKEN_WITHIN = 120.0


def chunk_objects(chunks: Sequence[ListedChunk]) -> list[dict[str, Any]]:
    """For `--json`."""
    return [
        {
            "id": each.id.hex,
            "state": "held" if each.held else each.state,
            "attempt": each.attempt,
            "lines": each.lines,
            "bytes": each.bytes,
            "provider_batch": each.provider_batch,
            "outcome": each.outcome,
            "missing": each.missing,
            "unknown": each.unknown,
            "doubled": each.doubled,
            "unreadable": each.unreadable,
            "error": each.error,
            "upstream": each.upstream,
            "base_url": each.base_url,
            "unserved": _unserved(each),
        }
        for each in chunks
    ]


def chunk_lines(chunks: Sequence[ListedChunk]) -> list[str]:
    """The chunks that are not done, and what was wrong with others."""
    displayed = [line for each in chunks if (line := _line(each)) is not None]
    more = len(displayed) - _DISPLAYED
    return [*displayed[:_DISPLAYED], *([f"and {counted(more, 'more chunk')}"] if more > 0 else [])]


def room_lines(providers: Sequence[FullProvider]) -> list[str]:
    """Where lines wait for room at a provider."""
    found = []
    for each in providers:
        limits = f"{each.chunks:,} of {each.max_chunks:,} chunks"
        if each.max_tokens is not None:
            limits += f", about {each.tokens:,} of {each.max_tokens:,} tokens"
        found.append(f"lines wait for room at the provider of {each.key}: it has {limits}, of all batches")
    return found


def chunk_line(chunks: Sequence[ListedChunk], task_id: str) -> str | None:
    """The chunk of one line."""
    named = (each for each in chunks if task_id == f"chunk:{each.id}")
    return next((_line(each) for each in named), None)


def _unserved(chunk: ListedChunk) -> bool:
    """Whether no worker serves its upstream."""
    return (chunk.waited or 0.0) > _TAKEN_WITHIN


def _line(chunk: ListedChunk) -> str | None:
    wrong = {
        "missing": chunk.missing,
        "unknown": chunk.unknown,
        "doubled": chunk.doubled,
        "unreadable": chunk.unreadable,
    }
    problems = ", ".join(f"{count:,} {name}" for name, count in wrong.items() if count)
    if chunk.state == "done" and not problems:
        return None
    state = "held: the provider may have accepted it" if chunk.held else chunk.state
    named = f" as {chunk.provider_batch}" if chunk.provider_batch is not None else ""
    about = f"chunk {chunk.id.hex[:12]}: {counted(chunk.lines, 'line')}, {state}{named}"
    if problems:
        about += f"; outputs: {problems}"
    if chunk.state != "done" and chunk.error is not None:
        about += f"; {chunk.error}"
    if _unserved(chunk):
        about += f"; no worker serves {chunk.base_url}: start one whose settings name it, or cancel the batch"
    return about
