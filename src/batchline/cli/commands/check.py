"""`batchline check`: compares the files of a batch, of Batchline or of others."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from batchline.cli import options
from batchline.cli.checked_lines import answer_lines, request_lines
from batchline.cli.display.console import CommandError, err, out, print_json
from batchline.cli.display.units import counted
from batchline.cli.errors import reported_errors
from batchline.cli.manifest import Manifest, ManifestFile, manifest_path
from batchline.cli.options import Exit
from batchline.tables.reconciling import Findings, LineFile, Problem, ReconcileFinding, reconcile

_DISPLAYED = 20
_DISPLAYED_JSON = 1000

_Files = Annotated[
    list[Path],
    typer.Argument(metavar="INPUT OUTPUT [ERRORS]", help="Requests or rows, the output, the error file."),
]
_OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="OUTPUT", help="The output. Then all arguments are inputs."),
]
_ErrorsOption = Annotated[Path | None, typer.Option("--errors", metavar="ERRORS", help="The error file.")]


def register(app: typer.Typer) -> None:
    app.command("check", rich_help_panel=options.PANEL_BATCHES)(check)


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    inputs: tuple[Path, ...]
    output: Path
    errors: Path | None


def check(
    files: _Files,
    output: _OutputOption = None,
    errors: _ErrorsOption = None,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Accept answers that are not in the order of the input.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Check that each request of INPUT has exactly one answer, for any files in OpenAI's format.

    If OUTPUT.manifest.json exists, the digests in it are checked, too. Then ERRORS can be left out. Exit code
    0: all is well. 1: there are findings. 2: a file is missing, or bad usage.

    Examples:

        batchline check prompts.jsonl prompts.output.jsonl
        batchline check a.jsonl b.jsonl --output out.jsonl --errors out.errors.jsonl
    """
    with reported_errors(as_json):
        findings = Findings(_DISPLAYED_JSON if as_json else _DISPLAYED)
        given = _given(files, output, errors)
        manifest = _read_manifest(given.output)
        if manifest is not None:
            given = _compare(manifest, _with_errors(given, manifest), findings)
        total = _reconcile(given, manifest, findings)
        if any_order:
            findings.counts.pop(Problem.OUT_OF_ORDER, None)
        _tell(findings, total, manifest is not None, as_json)
        raise typer.Exit(Exit.SOME_FAILED if findings.counts else Exit.OK)


def _given(files: Sequence[Path], output: Path | None, errors: Path | None) -> CheckedFiles:
    if output is not None:
        return CheckedFiles(tuple(files), output, errors)
    if len(files) not in (2, 3) or (len(files) == 3 and errors is not None):
        raise CommandError("give INPUT OUTPUT [ERRORS]; for several inputs, INPUT… --output OUTPUT")
    return CheckedFiles((files[0],), files[1], files[2] if len(files) == 3 else errors)


def _with_errors(given: CheckedFiles, manifest: Manifest) -> CheckedFiles:
    """The error file that the manifest has. A batch without failures has none, whatever the user gives."""
    if manifest.errors is not None:
        return replace(given, errors=given.errors or given.output.with_name(manifest.errors.name))
    missing = given.errors is not None and not given.errors.exists()
    return replace(given, errors=None) if missing else given


def _reconcile(given: CheckedFiles, manifest: Manifest | None, findings: Findings) -> int | None:
    """The number of requests; None if only the manifest could be checked, because a file is a table."""
    requests, output = request_lines(given.inputs, manifest), answer_lines(given.output)
    errors = None if given.errors is None else answer_lines(given.errors)
    if requests is None or output is None:
        if manifest is None:
            table = given.inputs[0].name if requests is None else given.output.name
            raise CommandError(
                f"check reads request lines and output lines, and {table} is a table without a manifest; "
                "check the .jsonl files of the batch (`batchline results`)"
            )
        return None
    name = given.inputs[0].name if len(given.inputs) == 1 else "inputs"
    return reconcile(LineFile(name, requests), output, errors, findings)


def _read_manifest(output: Path) -> Manifest | None:
    path = manifest_path(output)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise CommandError(f"{path} is not a manifest of Batchline: {error}") from error


def _compare(manifest: Manifest, given: CheckedFiles, findings: Findings) -> CheckedFiles:
    """Compare digests. Returns the files, with the inputs in the manifest's order."""
    inputs = _compare_inputs(manifest, given.inputs, findings) if manifest.inputs else given.inputs
    _compare_digest(given.output, manifest.output, findings)
    if given.errors is not None and manifest.errors is not None:
        if given.errors.exists():
            _compare_digest(given.errors, manifest.errors, findings)
        else:
            message = "the batch has this error file, and it is missing; give it, if it is elsewhere"
            findings.add(ReconcileFinding(Problem.COUNT, given.errors.name, message))
            return replace(given, inputs=inputs, errors=None)
    return replace(given, inputs=inputs)


def _compare_inputs(manifest: Manifest, inputs: Sequence[Path], findings: Findings) -> tuple[Path, ...]:
    left = dict(enumerate(manifest.inputs))
    positions: dict[Path, int] = {}
    changed = []
    for path in inputs:
        digest = _digest(path)
        found = next((position for position, entry in left.items() if entry.sha256 == digest), None)
        if found is None:
            changed.append((path, digest))
        else:
            positions[path] = found
            del left[found]
    for path, digest in changed:
        # The names of inputs that a pattern or a URL gave are whole paths.
        same = (position for position, entry in left.items() if Path(entry.name).name == path.name)
        found = next(same, next(iter(left)) if len(left) == 1 else None)
        positions[path] = len(manifest.inputs) if found is None else found
        if found is None:
            message = "not among the inputs of the manifest"
        else:
            message = _changed(digest, left.pop(found))
        findings.add(ReconcileFinding(Problem.DIGEST, path.name, message))
    if left:
        names = ", ".join(entry.name for entry in left.values())
        message = f"the batch has more inputs: {names}; give all of them: INPUT… --output OUTPUT"
        findings.add(ReconcileFinding(Problem.COUNT, inputs[0].name, message))
    return tuple(sorted(inputs, key=lambda path: positions[path]))


def _compare_digest(path: Path, expected: ManifestFile, findings: Findings) -> None:
    if (found := _digest(path)) != expected.sha256:
        findings.add(ReconcileFinding(Problem.DIGEST, path.name, _changed(found, expected)))


def _changed(found: str, expected: ManifestFile) -> str:
    return f"sha256 is {found}, in the manifest it is {expected.sha256}: the file has changed"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    lines = "" if total is None else f"{counted(total, 'request')}, each answered once; "
    out().print(f"clean: {lines}{manifest}", markup=False)
