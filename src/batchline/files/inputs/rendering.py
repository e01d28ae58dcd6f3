"""Turns rows into request lines.

A prompt is a Jinja template in a sandbox: the values of a row are data and never become templates. A template
for the whole body writes JSON. There, `{{ column }}` is escaped for the inside of a JSON string, and
`{{ column | tojson }}` is a whole JSON value, so that no value can change the structure of the body.

What a template does is not trusted to end: render only in the process of `process`, which is watched.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, Undefined, UndefinedError
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from batchline.files.inputs.errors import RowFault
from batchline.files.inputs.formats import Format, InputLimits
from batchline.files.inputs.rows import Row, columns_of, delimiter_hint, example_variable

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
_INPUT = frozenset({"/v1/embeddings", "/v1/moderations", RESPONSES})

# Exceptions that an expression of a template can cause.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
)
_OPTIONS: dict[str, Any] = {"undefined": StrictUndefined, "keep_trailing_newline": True}
_ONE_BRACE = re.compile(r"(?<!\{)\{\s*([A-Za-z_]\w*)\s*\}(?!\})")
_MISSING = re.compile(r"^'(?P<name>.*)' is undefined$")

_encode = msgspec.json.Encoder().encode
_decode_body = msgspec.json.Decoder(dict[str, Any]).decode


class RowTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become requests: from a prompt, or from a template of the whole body."""

    model: str | None = None
    endpoint: str = CHAT
    prompt: str | None = None
    system: str | None = None
    params: dict[str, Any] = {}
    body: str | None = None
    id_column: str | None = None


class InvalidRowTemplate(Exception):
    """A template is not valid Jinja."""


def check_syntax(source: str, what: str) -> None:
    """Raises InvalidRowTemplate. The template is parsed only: to compile it may compute without end."""
    try:
        _prompt_environment().parse(source)
    except TemplateSyntaxError as error:
        raise InvalidRowTemplate(f"{what}: line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise InvalidRowTemplate(f"{what}: nested too deep") from error


def check_columns(sources: Mapping[str, str | None]) -> None:
    """Raises InvalidRowTemplate if none of the templates, which are valid, uses a column: all requests would
    be the same. The keys name the options."""
    given = {what: source for what, source in sources.items() if source is not None}
    if not given or any(_uses_column(what, source) for what, source in given.items()):
        return
    what, source = next(iter(given.items()))
    found = _ONE_BRACE.search(source)
    hint = f"write {{{{{found[1]}}}}} instead of {found[0]}" if found else "write a column as in {{text}}"
    raise InvalidRowTemplate(f"{what} uses no column, so that all rows would send the same; {hint}")


def _uses_column(what: str, source: str) -> bool:
    try:
        return bool(find_undeclared_variables(_prompt_environment().parse(source)))
    except TemplateSyntaxError as error:
        # It parses, but names a filter or a test that does not exist.
        raise InvalidRowTemplate(f"{what}: line {error.lineno}: {error.message}") from error


class Renderer:
    """Renders rows. Compiling and rendering may take without end.

    `mark` is what errors write before the name of a template: the dashes of an option.
    """

    def __init__(self, how: RowTemplate, limits: InputLimits, mark: str = "--") -> None:
        self._how = how
        self._limits = limits
        self._mark = mark
        self._prompt = _compiled(how.prompt, f"{mark}prompt")
        self._system = _compiled(how.system, f"{mark}system")
        self._body = None if how.body is None else _compile(_json_environment(), how.body, "--template")
        self._middle = b',"method":"POST","url":' + _encode(how.endpoint) + b',"body":'

    def line(self, row: Row, number: int, format: Format) -> bytes:
        """The request line of a row. Raises RowFault. `number` counts the rows of all inputs."""
        body = self._from_template(row) if self._body is not None else self._from_prompt(row, format)
        try:
            return b'{"custom_id":' + _encode(self._id(row, number)) + self._middle + _encode(body) + b"}\n"
        except UnicodeEncodeError:
            raise RowFault("the request has a character that is not valid in UTF-8 (half a pair)") from None

    def body(self, row: Row) -> dict[str, Any]:
        """The request for a row, from the prompt. Raises RowFault."""
        return self._from_prompt(row, Format.JSONL)

    def _id(self, row: Row, number: int) -> str:
        column = self._how.id_column
        if column is None:
            return f"row-{number}"
        if column not in row:
            raise RowFault(
                f"there is no column {column!r} for --id-column; found {columns_of(row)}{delimiter_hint(row)}"
            )
        value = row[column]
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise RowFault(f"the value of --id-column {column} must be text or a whole number, not {value!r}")
        return str(value)

    def _from_template(self, row: Row) -> dict[str, Any]:
        assert self._body is not None
        text = self._rendered(self._body, row, "--template")
        try:
            body = _decode_body(text)
        except (msgspec.DecodeError, RecursionError) as error:
            what = "--template must write one JSON object"
            raise RowFault(f"{what}; use {{{{ column | tojson }}}} for JSON values: {error}") from None
        if "model" not in body:
            if self._how.model is None:
                raise RowFault(
                    "the body that --template writes has no model; give --model, or write it there"
                )
            body = {"model": self._how.model, **body}
        return body

    def _from_prompt(self, row: Row, format: Format) -> dict[str, Any]:
        how = self._how
        model = how.model or row.get("model")
        if not isinstance(model, str) or not model:
            raise RowFault("no model: give --model")
        system = None if self._system is None else self._rendered(self._system, row, f"{self._mark}system")
        if self._prompt is None and isinstance(row.get("messages"), list):
            content = self._messages(row["messages"], system)
        else:
            content = _request(how.endpoint, self._text(row, format), system)
        return {"model": model, **content, **how.params}

    def _messages(self, messages: list[Any], system: str | None) -> dict[str, Any]:
        if not messages or not all(isinstance(message, dict) for message in messages):
            raise RowFault('messages must be a list of objects such as {"role": "user", "content": …}')
        if self._how.endpoint not in (CHAT, RESPONSES):
            raise RowFault(f"messages cannot be sent to {self._how.endpoint}; give --endpoint {CHAT}")
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        return {"messages" if self._how.endpoint == CHAT else "input": messages}

    def _text(self, row: Row, format: Format) -> str:
        """The prompt: rendered, or the row's own."""
        if self._prompt is not None:
            return self._rendered(self._prompt, row, f"{self._mark}prompt")
        column = "text" if format is Format.TEXT else "prompt"
        text = row.get(column)
        if not isinstance(text, str):
            what = f"found {columns_of(row)}, but no text in a column prompt"
            example = example_variable(row)
            hint = delimiter_hint(row) or f"; give --prompt, for example --prompt '{{{{ {example} }}}}'"
            raise RowFault(f"{what}{hint}")
        return text

    def _rendered(self, template: Template, row: Row, what: str) -> str:
        """Render by pieces, because a template can write without end."""
        pieces, size = [], 0
        try:
            for piece in template.root_render_func(_context(template, row)):
                pieces.append(piece)
                size += len(piece)
                if size > self._limits.render_bytes:
                    raise RowFault(f"{what} writes more than {self._limits.render_bytes:,} characters")
        except UndefinedError as error:
            missing = _MISSING.match(str(error))
            problem = f"uses {missing['name']!r}, which is not a column" if missing else f"fails: {error}"
            raise RowFault(f"{what} {problem}; found {columns_of(row)}{delimiter_hint(row)}") from None
        except SecurityError as error:
            raise RowFault(f"{what} does something that templates may not do: {error}") from None
        except MemoryError:
            raise RowFault(f"{what} needs more than {self._limits.memory:,} bytes of memory") from None
        except _FAILURES as error:
            raise RowFault(f"{what} fails: {error or type(error).__name__}") from None
        return "".join(pieces)


class _RowWithRow(dict[str, Any]):
    """A row that has a column called row, too."""


def _context(template: Template, row: Row) -> Context:
    """As `new_context`, in a third of its time: that copies a ChainMap of globals for each row."""
    whole = _RowWithRow(row) if "row" in row else row
    variables = {**template.environment.globals, **row, "row": whole}
    return Context(template.environment, variables, template.name, template.blocks)


def _request(endpoint: str, text: str, system: str | None) -> dict[str, Any]:
    if endpoint == CHAT:
        messages = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return {"messages": messages}
    content: dict[str, Any] = {"input" if endpoint in _INPUT else "prompt": text}
    if system is not None:
        content["instructions"] = system
    return content


def takes_system(endpoint: str) -> bool:
    return endpoint in (CHAT, RESPONSES)


def _compiled(source: str | None, what: str) -> Template | None:
    return None if source is None else _compile(_prompt_environment(), source, what)


def _compile(environment: ImmutableSandboxedEnvironment, source: str, what: str) -> Template:
    try:
        return environment.from_string(source)
    except (*_FAILURES, MemoryError) as error:
        raise RowFault(f"{what} cannot be compiled: {error or type(error).__name__}") from None


def _prompt_environment() -> ImmutableSandboxedEnvironment:
    """Writes text. A missing value, such as a null of Parquet, is empty."""
    return _configured(ImmutableSandboxedEnvironment(finalize=_text_of, **_OPTIONS))


def _json_environment() -> ImmutableSandboxedEnvironment:
    return _configured(_JsonEnvironment(finalize=_escaped, **_OPTIONS))


class _JsonText(str):
    """Text that is JSON already. Whatever changes it makes ordinary text of it, which is escaped."""

    __slots__ = ()


class _JsonEnvironment(ImmutableSandboxedEnvironment):
    """Writes JSON. What a block or a macro has written is not escaped again.

    Jinja's own way, `autoescape`, is for HTML: its operations escape for HTML, and `safe` not at all.
    """

    # Of pieces that are finalized already.
    concat = staticmethod(lambda pieces: _JsonText("".join(pieces)))


def _configured(environment: ImmutableSandboxedEnvironment) -> ImmutableSandboxedEnvironment:
    environment.filters["tojson"] = _tojson
    # It writes random text, and nobody wants that in a request.
    del environment.globals["lipsum"]
    return environment


def _text_of(value: Any) -> Any:
    if callable(value) and not isinstance(value, Undefined):
        name = getattr(value, "__name__", type(value).__name__)
        raise TemplateRuntimeError(f"{name!r} is a function and not a value; is () missing, or a column?")
    if isinstance(value, _RowWithRow):
        raise TemplateRuntimeError("'row' is the whole row; for the column of this name, write row[\"row\"]")
    return "" if value is None else value


def _escaped(value: Any) -> str:
    if isinstance(value, _JsonText):
        return value
    return _encode(str(_text_of(value))).decode()[1:-1]


def _tojson(value: Any) -> _JsonText:
    if isinstance(value, Undefined):
        # Raises the usual error for an undefined value.
        str(value)
    return _JsonText(_encode(str(value) if isinstance(value, str) else value).decode())
