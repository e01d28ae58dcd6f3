"""Options that say how inputs become requests, and opens the inputs of `run` and `submit`."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from batchline.cli.display.console import CommandError, err
from batchline.cli.own_files import OwnFiles
from batchline.cli.runtime import folder_of, written_files
from batchline.cli.targets import OutputTarget
from batchline.config.kinds import size
from batchline.files.ingest import InputUnreadable
from batchline.files.inputs import urls
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import Format, InputLimits, stem
from batchline.files.inputs.input_set import InputOptions, InputSet, find_inputs
from batchline.files.inputs.locations import STDIN
from batchline.files.inputs.rendering import (
    CHAT,
    InvalidRowTemplate,
    RowTemplate,
    check_columns,
    check_syntax,
    takes_system,
)
from batchline.files.inputs.spool import Spool
from batchline.host.private import FolderNotPrivate, data_folder
from batchline.model.endpoints import ANY_ENDPOINT, ENDPOINTS

_PANEL = "Rows (CSV, TSV, text, JSON Lines, Parquet, Arrow)"
_SIZE = size(1, "KiB")
# Their own options set these.
_OWN_OPTIONS = {"model": "--model", "messages": "--prompt", "prompt": "--prompt", "input": "--prompt"}
_WORD = re.compile(r"[A-Za-z_][\w.-]*")


def _option(*names: str, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **more)


def _read_size(value: Any) -> Any:
    try:
        return _SIZE.read(_SIZE.from_text(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Model = Annotated[str | None, _option("--model", metavar="NAME", help="The model of all rows.")]
Prompt = Annotated[
    str | None,
    _option("--prompt", metavar="TEMPLATE", help="The user message: 'Translate to {{language}}: {{text}}'."),
]
System = Annotated[str | None, _option("--system", metavar="TEMPLATE", help="The system message.")]
Params = Annotated[
    list[str] | None,
    _option("--param", metavar="NAME=VALUE", help="A field of the body, in JSON: temperature=0. Repeatable."),
]
Endpoint = Annotated[
    str | None, _option("--endpoint", metavar="PATH", help=f"Where rows are sent. Default: {CHAT}.")
]
IdColumn = Annotated[
    str | None,
    _option("--id-column", metavar="COLUMN", help="The column with custom_ids. Default: row-1, row-2, …"),
]
BodyTemplate = Annotated[
    Path | None,
    _option("--template", metavar="FILE", help="A Jinja template of the whole body, in JSON."),
]
InputFormat = Annotated[
    Format | None, _option("--input-format", help="The format of the inputs, whatever their names.")
]
Delimiter = Annotated[
    str | None, _option("--delimiter", metavar="CHAR", help="Between the fields of CSV. Default: a comma.")
]
MaxInputSize = Annotated[
    int | None,
    _option(
        "--max-input-size",
        parser=_read_size,
        metavar="SIZE",
        help="The most that an input may have after decompression. Default: 64GiB.",
    ),
]


@dataclass(frozen=True, slots=True)
class RowOptions:
    model: Model = None
    prompt: Prompt = None
    system: System = None
    param: Params = None
    endpoint: Endpoint = None
    id_column: IdColumn = None
    template: BodyTemplate = None
    input_format: InputFormat = None
    delimiter: Delimiter = None
    max_input_size: MaxInputSize = None


def input_options(given: RowOptions) -> InputOptions:
    """Check the options. Raises CommandError."""
    template, endpoint, size = given.template, given.endpoint, given.max_input_size
    if template is not None:
        for flag, value in (("--prompt", given.prompt), ("--system", given.system), ("--param", given.param)):
            if value:
                raise CommandError(
                    f"{flag} and --template exclude each other: --template writes the whole body"
                )
    _check_endpoint(endpoint, has_body=template is not None)
    if given.system is not None and not takes_system(endpoint or CHAT):
        raise CommandError(f"--system: {endpoint} takes no system message; leave it out")
    how = RowTemplate(
        model=given.model,
        endpoint=endpoint or CHAT,
        prompt=_checked(given.prompt, "--prompt"),
        system=_checked(given.system, "--system"),
        params=_params(given.param or ()),
        body=None if template is None else _checked(_content(template), f"--template {template}"),
        id_column=given.id_column,
    )
    _check_columns(how)
    rows_expected = how != RowTemplate() or endpoint is not None
    limits = InputLimits() if size is None else InputLimits(max_bytes=size)
    delimiter = _checked_delimiter(given.delimiter)
    return InputOptions(how if rows_expected else None, given.input_format, delimiter, limits)


def _check_endpoint(endpoint: str | None, *, has_body: bool) -> None:
    if endpoint is None:
        return
    if (fault := ANY_ENDPOINT.fault(endpoint)) is not None:
        raise CommandError(f"--endpoint {fault}")
    if endpoint not in ENDPOINTS and not has_body:
        raise CommandError(
            f"--endpoint {endpoint}: give one of {', '.join(sorted(ENDPOINTS))}; for another path, give"
            " --template FILE, too, which writes the whole body"
        )


def _checked_delimiter(given: str | None) -> str | None:
    delimiter = {r"\t": "\t"}.get(given or "", given)
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise CommandError(f"--delimiter {delimiter!r}: give one character, such as ';' or '\\t'")
    return delimiter


@contextmanager
def opened_inputs(
    given: Sequence[str],
    options: InputOptions,
    data_dir: Path | None,
    targets: Iterable[OutputTarget] = (),
) -> Iterator[InputSet]:
    """The inputs. Copies of pipes and URLs exist until the context ends. `targets`: what the command writes,
    which is no input of its own, unless it is named as one."""
    own = OwnFiles(written_files(data_dir), targets)
    with Spool(lambda: _spool_folder(data_dir)) as spool:
        try:
            found = find_inputs(given, options, spool, own)
        except (InputUnreadable, InputRefused) as error:
            raise CommandError(str(error)) from error
        if own.note is not None:
            err().print(own.note, markup=False)
        yield found


def default_output(given: str) -> Path:
    """The output file of an input: beside a file or folder, else in the current folder."""
    path = Path(given)
    if given == STDIN:
        return Path("stdin.output.jsonl")
    if urls.is_url(given):
        path = Path(urls.public_name(given).rstrip("/").rpartition("/")[2])
    if has_magic(path.name) and not path.exists():
        return Path("inputs.output.jsonl")
    if not path.name or path.name == "..":
        path = path.absolute()
    known = stem(path.name)
    return (
        path.with_suffix(".output.jsonl") if known == path.name else path.with_name(f"{known}.output.jsonl")
    )


def _spool_folder(data_dir: Path | None) -> Path:
    folder = folder_of(data_dir)
    try:
        data_folder(folder)
    except FolderNotPrivate as error:
        raise CommandError(str(error)) from error
    return folder / "spool"


def _checked(source: str | None, what: str) -> str | None:
    if source is not None:
        try:
            check_syntax(source, what)
        except InvalidRowTemplate as error:
            raise CommandError(str(error)) from error
    return source


def _check_columns(how: RowTemplate) -> None:
    if how.prompt is None and how.body is None:
        return
    try:
        check_columns({"--prompt": how.prompt, "--system": how.system, "--template": how.body})
    except InvalidRowTemplate as error:
        raise CommandError(str(error)) from error


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"--template {path} cannot be read: {reason}") from error


def _params(given: Sequence[str]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise CommandError(f"--param {each!r}: give NAME=VALUE, for example temperature=0")
        if name in _OWN_OPTIONS:
            raise CommandError(f"--param {name}: give {_OWN_OPTIONS[name]} instead")
        params[name] = _param_value(each, value)
    return params


def _param_value(each: str, value: str) -> Any:
    """JSON. A single word, which is not JSON, is text: quotes inside quotes are hard to write in a shell."""
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        if _WORD.fullmatch(value):
            return value
        raise CommandError(f"--param {each!r}: the value is not JSON; text needs double quotes") from None
