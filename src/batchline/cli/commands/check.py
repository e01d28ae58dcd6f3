"""`batchline check`: compares the files of a batch, of Batchline or of others."""

import gzip
import hashlib
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import typer

from batchline.cli import options
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.errors import reported_errors
from batchline.cli.manifest import Manifest, ManifestFile, manifest_path
from batchline.cli.options import Exit
from batchline.files.inputs.detection import detect
from batchline.files.inputs.errors import InputRefused, StreamFault
from batchline.files.inputs.formats import InputFile, InputLimits
from batchline.files.inputs.streams import open_bytes
from batchline.tables.formats import UnknownFormat, format_of_name
from batchline.tables.reconciling import Findings, LineFile, Problem, ReconcileFinding, reconcile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_DISPLAYED = 20
_DISPLAYED_JSON = 1000
_LIMITS = InputLimits()

_InputArgument = Annotated[Path, typer.Argument(metavar="INPUT", help="The requests, one per line.")]
_OutputArgument = Annotated[Path, typer.Argument(metavar="OUTPUT", help="The output file.")]
_ErrorsArgument = Annotated[Path | None, typer.Argument(metavar="[ERRORS]", help="The error file.")]


def register(app: typer.Typer) -> None:
    app.command("check", rich_help_panel=options.PANEL_BATCHES)(check)


def check(
    requests: _InputArgument,
    output: _OutputArgument,
    errors: _ErrorsArgument = None,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Accept answers that are not in the order of the input.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Check that each request of INPUT has exactly one answer, for any files in OpenAI's format.

    If OUTPUT.manifest.json exists, the digests in it are checked, too. Exit code 0: all is well. 1: there are
    findings. 2: a file cannot be read.
    """
    with reported_errors(as_json):
        findings = Findings(_DISPLAYED_JSON if as_json else _DISPLAYED)
        manifest = _read_manifest(output)
        if manifest is not None:
            _compare(manifest, (requests, output, errors), findings)
        total = _reconcile(requests, output, errors, manifest, findings)
        if any_order:
            findings.counts.pop(Problem.OUT_OF_ORDER, None)
        _tell(findings, total, manifest is not None, as_json)
        raise typer.Exit(Exit.SOME_FAILED if findings.counts else Exit.OK)


def _reconcile(
    requests: Path, output: Path, errors: Path | None, manifest: Manifest | None, findings: Findings
) -> int | None:
    """The number of requests; None if only the manifest could be checked, because a file is a table."""
    paths = [path for path in (requests, output, errors) if path is not None]
    opened = [_request_file(requests), *(_line_file(path) for path in paths[1:])]
    if None in opened:
        if manifest is None:
            table = paths[opened.index(None)].name
            raise CommandError(
                f"check reads request lines and output lines, and {table} is a table without a manifest; "
                "check the .jsonl files of the batch (`batchline results`)"
            )
        return None
    try:
        known, answers, *failed = (file for file in opened if file is not None)
        return reconcile(known, answers, failed[0] if failed else None, findings)
    except (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError, StreamFault) as error:
        raise CommandError(f"a compressed file is damaged: {error}") from error


@dataclass(frozen=True, slots=True)
class _RequestLines:
    file: InputFile

    def __iter__(self) -> Iterator[bytes]:
        with open_bytes(self.file, _LIMITS) as file:
            yield from file


def _request_file(path: Path) -> LineFile | None:
    """The lines of the input; None if it has rows instead of requests."""
    try:
        found = detect(path.name, path, _LIMITS)
    except InputRefused as error:
        raise CommandError(str(error)) from error
    return LineFile(path.name, _RequestLines(found)) if found.is_envelope else None


@dataclass(frozen=True, slots=True)
class _FileLines:
    path: Path

    def __iter__(self) -> Iterator[bytes]:
        with _open(self.path) as file:
            yield from file


def _line_file(path: Path) -> LineFile | None:
    """The lines of a file; None if it is a table."""
    try:
        kind = format_of_name(path.name).kind
    except UnknownFormat as error:
        raise CommandError(f"check reads JSON Lines: {error}") from error
    return LineFile(path.name, _FileLines(path)) if kind == "jsonl" else None


def _open(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    match format_of_name(path.name).compression:
        case "gz":
            return gzip.open(path)
        case "zst":
            return zstd.open(path)
        case None:
            return path.open("rb")


def _read_manifest(output: Path) -> Manifest | None:
    path = manifest_path(output)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CommandError(f"{path} is not a manifest of Batchline: {error}") from error


def _compare(manifest: Manifest, paths: tuple[Path, Path, Path | None], findings: Findings) -> None:
    requests, output, errors = paths
    if manifest.inputs:
        # The names of inputs that a pattern or a URL gave are whole paths.
        same = [file for file in manifest.inputs if PurePosixPath(file.name).name == requests.name]
        entry = same[0] if same else (manifest.inputs[0] if len(manifest.inputs) == 1 else None)
        if entry is None:
            names = ", ".join(file.name for file in manifest.inputs)
            message = f"not among the inputs of the manifest: {names}"
            findings.add(ReconcileFinding(Problem.DIGEST, requests.name, message))
        else:
            _compare_digest(requests, entry, findings)
    _compare_digest(output, manifest.output, findings)
    if errors is not None and manifest.errors is not None:
        _compare_digest(errors, manifest.errors, findings)
    elif errors is None and manifest.errors is not None:
        message = f"the batch has an error file, {manifest.errors.name}; give it as the third file"
        findings.add(ReconcileFinding(Problem.COUNT, output.name, message))


def _compare_digest(path: Path, expected: ManifestFile, findings: Findings) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.sha256:
        message = f"sha256 is {found}, in the manifest it is {expected.sha256}: the file has changed"
        findings.add(ReconcileFinding(Problem.DIGEST, path.name, message))


def _tell(findings: Findings, total: int | None, with_manifest: bool, as_json: bool) -> None:
    counts = {problem.value: count for problem, count in findings.counts.items()}
    listed = [each for each in findings.listed if each.problem in findings.counts]
    if as_json:
        print_json({"requests": total, "manifest": with_manifest, "counts": counts, "findings": listed})
        return
    for finding in listed:
        err().print(str(finding), markup=False)
    if counts:
        totals = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
        err().print(f"findings: {totals}", markup=False)
        return
    manifest = "digests as in the manifest" if with_manifest else "no manifest"
    lines = "" if total is None else f"{total:,} requests, each answered once; "
    out().print(f"clean: {lines}{manifest}", markup=False)
