"""The results of a pipeline in the order of its rows, and the rows that failed.

Stages finish rows in any order. Results wait in a temporary file, of which only the positions are in memory.
"""

import json
from array import array
from collections.abc import AsyncGenerator, Sequence
from typing import IO, Any

import msgspec

from batchline.app.results import ItemResult
from batchline.app.submitted_batch import SubmittedBatch
from batchline.operations.http_stage import HttpStage

_BLOCK = 2**20
_NONE = -1


class RowFailure(msgspec.Struct, frozen=True):
    """Why a row has not reached the last stage. `row` counts from 1."""

    row: int
    stage: str
    code: str
    message: str


class PipelineRows:
    """The rows that have passed all stages, and the failures. `file` is an empty temporary file."""

    def __init__(self, file: IO[bytes]) -> None:
        # Lines written, and those of them that have the answers of all last stages.
        self.written = 0
        self.complete = 0
        self.failures: list[RowFailure] = []
        self._file = file
        # Of each last stage: where the result of each row begins.
        self._offsets: list[array[int]] = []

    async def read(self, batch: SubmittedBatch[Any, Any], stages: Sequence[HttpStage]) -> None:
        """Read the results of an ended batch. Raises LookupError if they were deleted."""
        progress = await batch.status()
        for stage in stages:
            counts = progress.stages[stage.name]
            last = not stage.options.emits
            # All results of a stage that passes them on are in the next one.
            if last or counts.completed < counts.total:
                await self._read(batch, stage, self._added() if last else None)
        self.failures.sort(key=lambda failure: failure.row)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """One line of JSON per row that has reached a last stage, in blocks."""
        block = bytearray()
        for row in range(max(map(len, self._offsets), default=0)):
            found = [
                self._line(offsets[row])
                for offsets in self._offsets
                if row < len(offsets) and offsets[row] != _NONE
            ]
            if found:
                self.written += 1
                self.complete += len(found) == len(self._offsets)
                block += found[0] if len(found) == 1 else _merged(found)
            if len(block) >= _BLOCK:
                yield bytes(block)
                block.clear()
        yield bytes(block)

    async def failed_lines(self) -> AsyncGenerator[bytes, None]:
        for failure in self.failures:
            yield msgspec.json.encode(failure) + b"\n"

    @property
    def failed(self) -> int:
        """How many rows have failed in some stage."""
        return len({failure.row for failure in self.failures})

    def _added(self) -> "array[int]":
        self._offsets.append(array("q"))
        return self._offsets[-1]

    async def _read(
        self, batch: SubmittedBatch[Any, Any], stage: HttpStage, offsets: "array[int] | None"
    ) -> None:
        name = stage.settings.name
        async for page in batch.result_pages(stage=stage.name):
            for result in page:
                if result.error is not None:
                    error = result.error
                    self.failures.append(RowFailure(int(result.key), name, error.code, error.message))
                elif offsets is not None:
                    self._keep(result, offsets)

    def _keep(self, result: ItemResult[Any], offsets: "array[int]") -> None:
        row = int(result.key)
        offsets.extend([_NONE] * (row + 1 - len(offsets)))
        offsets[row] = self._file.tell()
        # Not msgspec, which cannot write whole numbers of more than 64 bits.
        text = json.dumps(result.value, ensure_ascii=False, separators=(",", ":"))
        self._file.write(text.encode() + b"\n")

    def _line(self, offset: int) -> bytes:
        self._file.seek(offset)
        return self._file.readline()


def _merged(lines: Sequence[bytes]) -> bytes:
    """The fields of all of them."""
    merged: dict[str, msgspec.Raw] = {}
    for line in lines:
        merged |= msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(merged) + b"\n"
