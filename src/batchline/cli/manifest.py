"""The manifest beside an output, OUT.manifest.json: what was run, and digests of what was read and written.

It has no secrets: of URLs neither user, query nor fragment, and of an API key nothing. The same run writes
the same bytes.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec

from batchline import __version__
from batchline.cli.targets import Outputs, OutputTarget, WrittenOutput, target_at
from batchline.model import Batch, ids
from batchline.secrets.addresses import public_url

MANIFEST_SUFFIX = ".manifest.json"


class ManifestFile(msgspec.Struct, frozen=True):
    name: str
    sha256: str
    bytes: int
    # Of an output: its lines, or the rows of a table.
    rows: int | None = None
    format: str | None = None
    # Of an input in CSV, if it is another one than a comma.
    delimiter: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    batchline: str
    batch_id: str
    status: str
    # Empty if the input has changed since the batch was created.
    inputs: list[ManifestFile]
    output: ManifestFile
    errors: ManifestFile | None
    counts: dict[str, int]
    tokens: dict[str, int]
    settings: dict[str, object]


def manifest_path(output: Path) -> Path:
    return output.with_name(output.name + MANIFEST_SUFFIX)


def manifest_target(output: OutputTarget) -> OutputTarget | None:
    """Only files have manifests."""
    return target_at(manifest_path(output.given)) if output.is_file else None


def describe_run(
    batch: Batch,
    inputs: Sequence[ManifestFile],
    output: ManifestFile,
    errors: ManifestFile | None,
    how: dict[str, object],
) -> Manifest:
    settings = batch.settings
    return Manifest(
        batchline=__version__,
        batch_id=ids.show(ids.BATCH, batch.id),
        status=batch.status.value,
        inputs=list(inputs),
        output=output,
        errors=errors,
        counts={
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
            "never_run": batch.total - batch.finished,
        },
        tokens={
            "input": batch.input_tokens,
            "cached": batch.cached_tokens,
            "output": batch.output_tokens,
            "reasoning": batch.reasoning_tokens,
        },
        settings={
            "upstream": None if settings.upstream is None else public_url(settings.upstream),
            "max_attempts": settings.max_attempts,
            "timeout": settings.timeout,
            "window": batch.completion_window,
            **how,
        },
    )


def written_file(
    target: OutputTarget, written: WrittenOutput, rows: int, format: str = "jsonl"
) -> ManifestFile:
    return ManifestFile(target.given.name, written.sha256, written.size, rows, format)


async def write_manifest(outputs: Outputs, target: OutputTarget, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"

    async def blocks() -> AsyncGenerator[bytes, None]:
        yield text

    async with aclosing(blocks()) as content:
        await outputs.write(target, content)
