"""The inputs of one command: what they are, how to recognize them again, and their lines and rows.

Request lines in plain files are read as they are. All others are read and rendered by another process
(`process`), and reach the ingest as request lines, too.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from batchline.files.ingest import Fingerprint, InputSource, InputUnreadable, fingerprint, unreadable_reason
from batchline.files.inputs import process, urls
from batchline.files.inputs.detection import detect
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import Format, InputFile, InputLimits
from batchline.files.inputs.locations import IsOutput, LocatedInput, locate
from batchline.files.inputs.rendering import RowTemplate
from batchline.files.inputs.rows import Row, columns_of, delimiter_hint, example_variable, numbered_rows
from batchline.files.inputs.spool import Spool
from batchline.host.disk import is_full

# Changes if the same rows and template become other requests.
_VERSION = 1
_OPTIONS = "--model, --prompt, --system, --param, --template, --endpoint and --id-column"


class InputOptions(msgspec.Struct, frozen=True):
    """What the user says about the inputs."""

    # None: nothing; the lines must be requests, or name their own model.
    template: RowTemplate | None = None
    format: Format | None = None
    delimiter: str | None = None
    limits: InputLimits = InputLimits()
    # Why request lines are refused; None: they are not.
    requests_refused: str | None = None


class InputSet(msgspec.Struct, frozen=True):
    """The files of one command, in order."""

    files: tuple[InputFile, ...]
    # None: the lines of all files are requests.
    template: RowTemplate | None
    limits: InputLimits
    # The files that belong to the user, and must not be overwritten.
    originals: tuple[Path, ...]

    @property
    def paths(self) -> list[Path]:
        return [Path(file.path) for file in self.files]

    @property
    def title(self) -> str:
        first = self.files[0].name
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    @property
    def same_columns(self) -> bool:
        """Whether all rows of a file have the same columns. Only lines of JSON can differ in them."""
        return all(file.format is not Format.JSONL for file in self.files)

    @property
    def is_plain(self) -> bool:
        """Whether the files' bytes are request lines as they are."""
        return all(file.is_plain for file in self.files)

    def fingerprint(self) -> Fingerprint:
        """The digest of the files, and of all that decides which requests they become.

        Raises InputUnreadable.
        """
        known = fingerprint(self.paths)
        if self.is_plain:
            return known
        kinds = [(file.format, file.compression, file.delimiter, file.is_envelope) for file in self.files]
        how = msgspec.json.encode((_VERSION, kinds, self.template))
        return msgspec.structs.replace(known, digest=sha256(known.digest + how).digest())

    @asynccontextmanager
    async def sources(self) -> AsyncIterator[list[InputSource]]:
        """The request lines, for `ingest`. Reading raises InputRefused."""
        if self.is_plain:
            yield [InputSource(file.name, path) for file, path in zip(self.files, self.paths, strict=True)]
            return
        async with process.rendered(self.files, self.template, self.limits) as running:
            yield [
                InputSource(file.name, running.lines(file), "line" if file.is_envelope else "row")
                for file in self.files
            ]

    def rows(self) -> Iterator[tuple[int, Row]]:
        """The rows of all files with their numbers, in order, as often as needed. Raises InputRefused.

        The number is the line number of the row's request, which is the last part of the output line's id. A
        row of request lines is the whole request.
        """
        before = 0
        for file in self.files:
            number = 0
            for number, row in numbered_rows(file, self.limits):
                if row is not None:
                    yield before + number, row
            before += number

    def columns(self) -> list[str]:
        """The names of all columns, in the order of their first appearance. Raises InputRefused."""
        found: dict[str, None] = {}
        for file in self.files:
            for _, row in numbered_rows(file, self.limits):
                found.update(dict.fromkeys(row or ()))
                # Only lines of JSON can differ in their columns.
                if row is not None and file.format is not Format.JSONL:
                    break
        return list(found)


def find_inputs(
    given: Sequence[str], options: InputOptions, spool: Spool, is_output: IsOutput = lambda _: False
) -> InputSet:
    """Find the inputs and find out what they are. Of folders and patterns, outputs are left out.

    Raises InputUnreadable and InputRefused, and OSError if there is no room for copies.
    """
    located: list[LocatedInput] = []
    current = given[0]
    try:
        for current in given:
            located += locate(current, spool, options.limits, is_output)
        files = []
        for each in located:
            current = each.name
            files.append(
                detect(
                    each.name,
                    each.path,
                    options.limits,
                    requested=options.format,
                    delimiter=options.delimiter,
                    rows_expected=options.template is not None,
                )
            )
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and is_full(error):
            raise
        raise InputUnreadable(urls.public_name(current), unreadable_reason(error)) from error
    template = _checked_template(files, options)
    originals = tuple(each.path for each in located if each.is_original)
    return InputSet(tuple(files), template, options.limits, originals)


def _checked_template(files: Sequence[InputFile], options: InputOptions) -> RowTemplate | None:
    """Check that the options fit the files, before anything is read or started."""
    requests = next((file for file in files if file.is_envelope), None)
    if requests is not None and options.requests_refused is not None:
        raise InputRefused(requests.name, options.requests_refused)
    first = next((file for file in files if not file.is_envelope), None)
    if first is None:
        if options.template is not None:
            raise InputRefused(
                files[0].name, f"its lines are complete requests already; leave out {_OPTIONS}"
            )
        return None
    template = options.template or RowTemplate()
    if template.model is None and template.body is None:
        _check_own_model(first, options.limits, template)
    return template


def _check_own_model(file: InputFile, limits: InputLimits, template: RowTemplate) -> None:
    row = next((row for _, row in numbered_rows(file, limits) if row is not None), None)
    if row is None or isinstance(row.get("model"), str):
        return
    hint = delimiter_hint(row)
    example = f"--prompt 'Translate to German: {{{{{example_variable(row)}}}}}'"
    asks = (
        ""
        if template.prompt or file.format is Format.TEXT or "prompt" in row or "messages" in row
        else f" and a prompt, for example {example}"
    )
    raise InputRefused(file.name, f"found rows with the columns {columns_of(row)}; give --model{asks}{hint}")
