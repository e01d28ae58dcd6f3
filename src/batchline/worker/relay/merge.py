"""Merges the outputs of a chunk: checks every key against what was sent, and settles verdicts in groups."""

import re
from bisect import bisect_right
from collections.abc import Sequence

import structlog

from batchline.batches.output import failed_line
from batchline.model import Failed, Item, Verdict
from batchline.store.provider_chunks import ChunkState, MergeCounts
from batchline.upstreams.relay.batch_api import BatchApi, ChunkOrder, OutputLine, UnreadableOutput
from batchline.upstreams.relay.connection import ReadLine, RelayConnection, RequestRefused
from batchline.worker.relay.chunk_lines import ChunkLines
from batchline.worker.relay.output_verdict import verdict_on

# Outputs that are settled together.
_GROUP = 200
_GROUP_BYTES = 8 * 2**20
# Where the key is in a line that is too long to be read.
_KEY = re.compile(rb'"custom_id"\s*:\s*"([^"\\]{1,64})"')
_KEY_WITHIN = 4096
_NOT_FOUND = 404

_log = structlog.get_logger("batchline.relay")


class Merge:
    """One pass over all outputs of a chunk. It may be repeated: lines that have a verdict are passed over."""

    def __init__(
        self,
        api: BatchApi,
        connection: RelayConnection,
        lines: ChunkLines,
        state: ChunkState,
        order: ChunkOrder,
    ) -> None:
        self._api = api
        self._connection = connection
        self._lines = lines
        self._state = state
        self._order = order
        self._starts = [start for start, _ in state.ordinals]
        self.counts = MergeCounts()
        self._seen: set[int] = set()

    async def run(self, outputs: Sequence[str], max_line: int, *, given_back: bool) -> None:
        """Raises the errors of RelayConnection."""
        for path in outputs:
            try:
                await self._read(path, max_line, given_back=given_back)
            except RequestRefused as refused:
                if refused.status != _NOT_FOUND:
                    raise
                _log.warning("the provider has lost an output", chunk=self._order.key, output=path)

    async def _read(self, path: str, max_line: int, *, given_back: bool) -> None:
        group: dict[int, OutputLine | ReadLine] = {}
        size = 0
        async for line in self._connection.lines(path, max_line):
            output = self._output(line)
            ordinal = None if output is None else self._ordinal(output)
            if output is None or ordinal is None:
                continue
            group[ordinal] = output
            size += len(line.text)
            if len(group) >= _GROUP or size >= _GROUP_BYTES:
                await self._settle(group, max_line, given_back=given_back)
                group, size = {}, 0
        await self._settle(group, max_line, given_back=given_back)

    def _output(self, line: ReadLine) -> OutputLine | ReadLine | None:
        """None: the line cannot be read."""
        if line.cut:
            return line
        try:
            return self._api.read(line.text)
        except UnreadableOutput as error:
            self.counts.unreadable += 1
            _log.warning("an output cannot be read", chunk=self._order.key, reason=str(error))
            return None

    def _ordinal(self, output: OutputLine | ReadLine) -> int | None:
        """The line that it is for; None: it is for none, or that has one already."""
        ordinal = self._sent(_key_of(output))
        if ordinal is None:
            self.counts.unknown += 1
            _log.warning("an output is for no line of its chunk", chunk=self._order.key)
        elif ordinal in self._seen:
            self.counts.doubled += 1
            _log.warning("a line has two outputs; the first counts", chunk=self._order.key, ordinal=ordinal)
            return None
        else:
            self._seen.add(ordinal)
        return ordinal

    def _sent(self, key: str) -> int | None:
        chunk, _, number = key.rpartition("-")
        if chunk != self._order.key or not number.isascii() or not number.isdigit() or len(number) > 10:
            return None
        ordinal = int(number)
        nth = bisect_right(self._starts, ordinal) - 1
        return ordinal if nth >= 0 and ordinal <= self._state.ordinals[nth][1] else None

    async def _settle(
        self, group: dict[int, OutputLine | ReadLine], max_line: int, *, given_back: bool
    ) -> None:
        if group:
            items = await self._lines.read(list(group))
            await self._lines.settle(
                [_verdict(item, group[item.ordinal], max_line, given_back=given_back) for item in items]
            )


def _key_of(output: OutputLine | ReadLine) -> str:
    if isinstance(output, OutputLine):
        return output.key
    found = _KEY.search(output.text[:_KEY_WITHIN])
    return "" if found is None else found[1].decode("ascii", "replace")


def _verdict(item: Item, output: OutputLine | ReadLine, max_line: int, *, given_back: bool) -> Verdict:
    if isinstance(output, OutputLine):
        return verdict_on(item, output, given_back=given_back)
    message = f"The provider's answer exceeds {max_line} bytes."
    return Failed(item, failed_line(item, "response_too_large", message))
