"""Which files a command writes, in which format: request lines unchanged, or a table.

Output lines go unchanged into one file, error lines into another. A table (CSV, Parquet, or with `--select`
or `--join`) has a row for each line that has ended, so it needs no error file; with `--errors` it has
completed lines only.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from batchline.cli import options
from batchline.cli.display.console import CommandError, err
from batchline.cli.manifest import manifest_target
from batchline.cli.options import Exit
from batchline.cli.targets import Outputs, OutputTarget, WrittenOutput, target_at
from batchline.store.outputs import Which
from batchline.tables.columns import TableError, read_select
from batchline.tables.formats import OutputFormat, UnknownFormat, compressor, format_of_name, read_format
from batchline.tables.joining import InputRows
from batchline.tables.table import Blocks, TableLines, TableSpec, TableWriter

FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="jsonl, csv or parquet; also jsonl.gz, csv.zst and so on. Default: by the name of the output.",
    ),
]
SelectOption = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="NAME[=EXPR]",
        help="A column of the output: answer, or NAME=EXPR with a JMESPath expression. Repeatable.",
    ),
]
FollowOption = Annotated[
    bool,
    typer.Option(
        "--follow",
        help="Write lines while the batch runs, in input order, to stdout or a pipe.",
    ),
]
JoinOption = Annotated[bool, typer.Option("--join", help="Add the input's columns to each row.")]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What `run` writes."""

    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="A .jsonl, .csv or .parquet file, or - for stdout. Default: INPUT.output.jsonl",
        ),
    ] = None
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", metavar="ERR.jsonl", help="Default: OUT.errors.jsonl; of a table, its column error."
        ),
    ] = None
    format: FormatOption = None
    select: SelectOption = None
    join: JoinOption = False
    follow: FollowOption = False
    force: options.Force = False


# Opens the output or error lines of the batch.
OpenLines = Callable[[Which], Blocks]


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """`spec` is None for unchanged lines. `errors` is None if failed lines are rows of the table."""

    output: OutputTarget
    errors: OutputTarget | None
    format: OutputFormat
    spec: TableSpec | None
    manifest: OutputTarget | None = None

    @property
    def is_table(self) -> bool:
        return self.spec is not None

    def joined_to(self, rows: InputRows) -> "OutputPlan":
        """The same plan with the columns of the input."""
        assert self.spec is not None
        return replace(self, spec=msgspec.structs.replace(self.spec, join=rows))

    @property
    def targets(self) -> list[OutputTarget]:
        return [each for each in (self.output, self.errors, self.manifest) if each is not None]

    def check(self, outputs: Outputs, inputs: Sequence[Path]) -> None:
        """Check before anything runs that all files may be written. Raises CommandError."""
        if self.output.is_file and any(self.output.path == other.path for other in self.targets[1:]):
            raise CommandError(f"{self.output.name}: output and errors need two files")
        for each in self.targets:
            outputs.check(each, inputs)

    async def write_output(self, outputs: Outputs, open_lines: OpenLines) -> tuple[WrittenOutput, int]:
        """Write the output file. Returns also the number of its rows."""
        if self.spec is None:
            packed = _Packed(self.format, open_lines("output"))
            async with aclosing(packed.blocks()) as blocks:
                return await outputs.write(self.output, blocks), packed.lines
        opened = tuple(partial(open_lines, each) for each in self.kinds)
        return await self._write_table(outputs, TableWriter(self.spec, TableLines(opened, opened[0])))

    async def write_followed(
        self, outputs: Outputs, open_followed: Callable[[Sequence[Which]], Blocks]
    ) -> tuple[WrittenOutput, int]:
        """As `write_output`, from lines that are in order already."""
        if self.spec is None:
            return await self.write_output(outputs, lambda which: open_followed([which]))
        lines = TableLines((partial(open_followed, self.kinds),), partial(open_followed, ["output"]))
        return await self._write_table(outputs, TableWriter(self.spec, lines))

    @property
    def kinds(self) -> tuple[Which, ...]:
        """The lines that are in the output."""
        return ("output", "errors") if self.is_table and self.errors is None else ("output",)

    async def _write_table(self, outputs: Outputs, table: TableWriter) -> tuple[WrittenOutput, int]:
        try:
            async with aclosing(table.blocks()) as blocks:
                written = await outputs.write(self.output, blocks)
        except TableError as error:
            raise CommandError(f"{error}; no result is lost", Exit.SOME_FAILED) from error
        for note in table.faults.notes():
            err().print(f"warning: {note}", markup=False)
        return written, table.rows


def plan_output(
    output: Path,
    errors: Path | None,
    *,
    format: str | None,
    select: Sequence[str] | None,
    join: bool = False,
) -> OutputPlan:
    """Check the options. `errors` is what the user gave. Raises CommandError.

    With `join`, the plan still needs the rows: see `joined_to`.
    """
    target = target_at(output)
    try:
        found = _format(target, format)
        columns = read_select(select) if select else None
    except (UnknownFormat, TableError) as error:
        raise CommandError(str(error)) from error
    if found.kind == "parquet" and find_spec("pyarrow") is None:
        raise CommandError("Parquet needs pyarrow; install it: pip install 'batchline[tables]'")
    as_lines = found.kind == "jsonl" and columns is None and not join
    spec = None if as_lines else TableSpec(found, columns)
    return OutputPlan(target, None if errors is None else errors_at(errors), found, spec)


def plan_run(given: OutputOptions, usual: Path) -> OutputPlan:
    """What `run` writes; `usual` is the output of its inputs if none is given. Raises CommandError."""
    usual = _default_path(usual, given)
    plan = plan_output(
        given.output or (Path("-") if given.follow else usual),
        given.errors,
        format=given.format,
        select=given.select,
        join=given.join,
    )
    if not plan.is_table and plan.errors is None:
        plan = replace(plan, errors=target_at(_errors_beside(plan.output, usual)))
    if given.follow:
        _check_follow(plan)
    return replace(plan, manifest=manifest_target(plan.output))


def _default_path(usual: Path, given: OutputOptions) -> Path:
    """The usual output with the suffix of the format that the user gave. Raises CommandError."""
    try:
        path = usual if given.format is None else usual.with_suffix(f".{read_format(given.format)}")
    except UnknownFormat as error:
        raise CommandError(str(error)) from error
    if (given.select or given.join) and ".output.jsonl" in path.name:
        # Not the name of the output lines, which the same command without these options has written.
        return path.with_name(path.name.replace(".output.jsonl", ".table.jsonl"))
    return path


def _check_follow(plan: OutputPlan) -> None:
    """Raises CommandError if the output cannot be written while the batch runs."""
    if plan.output.is_file:
        raise CommandError(
            "--follow writes to stdout or a pipe, because a file appears when it is complete; give -o -"
        )
    if plan.format.kind == "parquet":
        raise CommandError(
            "--follow cannot write Parquet, which is complete only at its end; give --format csv or jsonl"
        )


def _errors_beside(target: OutputTarget, usual: Path) -> Path:
    """The error file beside the output, or beside the default output if that is not a file."""
    path = target.given if target.is_file else usual
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).with_suffix(".errors.jsonl")


def errors_at(path: Path) -> OutputTarget:
    """Error lines are always written unchanged."""
    target = target_at(path)
    try:
        found = _format(target, None)
    except UnknownFormat as error:
        raise CommandError(str(error)) from error
    if found != OutputFormat():
        raise CommandError(f"{path}: errors are written as JSON Lines; give a name that ends in .jsonl")
    return target


def _format(target: OutputTarget, given: str | None) -> OutputFormat:
    if given is not None:
        return read_format(given)
    return format_of_name(target.given.name) if target.descriptor is None else OutputFormat()


class _Packed:
    """Lines, compressed if the format says so; `lines` counts them."""

    def __init__(self, format: OutputFormat, lines: AsyncGenerator[bytes, None]) -> None:
        self._format = format
        self._source = lines
        self.lines = 0

    async def blocks(self) -> Blocks:
        packed = compressor(self._format.compression)
        async with aclosing(self._source) as source:
            async for block in source:
                self.lines += block.count(b"\n")
                yield packed.compress(block)
        if end := packed.flush():
            yield end
