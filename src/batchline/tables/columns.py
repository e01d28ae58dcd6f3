"""Columns of an output table: named fields of an output line, and JMESPath expressions over it.

The named fields hide the differences between the endpoints: `answer` is the text of a chat completion, of a
completion or of a response.
"""

import re
from array import array
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jmespath
import jmespath.exceptions
import msgspec

_NAME = re.compile(r"[A-Za-z_]\w*")
_MAX_REASON = 500
# What an integer of a Parquet file can be.
MAX_INT = 2**63 - 1


class TableError(Exception):
    """A table cannot be made from these lines with these columns."""


class OutputColumn(msgspec.Struct, frozen=True):
    """A column: a named field, unless it has an expression."""

    name: str
    # A compiled expression of jmespath, which has no types.
    expression: Any = None


class _RecordResponse(msgspec.Struct):
    status_code: int = 0
    request_id: Any = None
    body: Any = None


class OutputRecord(msgspec.Struct):
    """An output or error line."""

    custom_id: str
    id: str = ""
    response: _RecordResponse | None = None
    error: Any = None

    @property
    def body(self) -> Any:
        return None if self.response is None else self.response.body

    @property
    def completed(self) -> bool:
        return self.error is None and self.response is not None and 200 <= self.response.status_code < 300


decode_record = msgspec.json.Decoder(OutputRecord).decode


def _field(value: Any, *path: str | int) -> Any:
    """A value inside JSON; None if something on the way is missing or of another type."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and len(value) > step else None
    return value


def _answer(record: OutputRecord) -> str | None:
    body = record.body
    choice = _field(body, "choices", 0)
    text = _field(choice, "message", "content") if _field(choice, "message") else _field(choice, "text")
    if text is None and isinstance(_field(body, "output"), list):
        contents = [_field(item, "content") for item in body["output"]]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        texts = [t for part in parts if isinstance(t := _field(part, "text"), str)]
        return "".join(texts) if texts else None
    return text if text is None or isinstance(text, str) else _json(text)


def _finish_reason(record: OutputRecord) -> str | None:
    reason = _field(record.body, "choices", 0, "finish_reason")
    if reason is None and _field(record.body, "object") == "response":
        reason = _field(record.body, "status")
    return reason if isinstance(reason, str) else None


def _error(record: OutputRecord) -> str | None:
    if record.error is not None:
        code, message = _field(record.error, "code"), _field(record.error, "message")
        return f"{code}: {message}" if code else _json(record.error)
    if record.response is None or record.completed:
        return None
    message = _field(record.body, "error", "message")
    if not isinstance(message, str):
        message = record.body if isinstance(record.body, str) else _json(record.body)
    return f"http_{record.response.status_code}: {message[:_MAX_REASON]}"


def _tokens(*names: str) -> Callable[[OutputRecord], int | None]:
    def read(record: OutputRecord) -> int | None:
        usage = _field(record.body, "usage")
        found = (_field(usage, name) for name in names)
        return next((count for count in found if type(count) is int and abs(count) <= MAX_INT), None)

    return read


def _embedding(record: OutputRecord) -> list[float] | None:
    vectors = _field(record.body, "data")
    if not isinstance(vectors, list) or not vectors:
        return None
    if len(vectors) > 1:
        raise TableError(
            f"{record.custom_id}: the answer has {len(vectors)} embeddings, and a row has one; "
            "give --select 'embeddings=response.body.data[].embedding'"
        )
    return _vector(_field(vectors, 0, "embedding"))


def _vector(value: Any) -> list[float] | None:
    """The numbers of an embedding, also in base64; None if it is none."""
    if isinstance(value, str):
        floats = array("f")
        try:
            floats.frombytes(b64decode(value, validate=True))
        except ValueError:
            return None
        return floats.tolist()
    return value if isinstance(value, list) and {*map(type, value)} <= {int, float} else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_FIELDS: dict[str, Callable[[OutputRecord], Any]] = {
    "custom_id": lambda record: record.custom_id,
    "answer": _answer,
    "finish_reason": _finish_reason,
    "error": _error,
    "input_tokens": _tokens("prompt_tokens", "input_tokens"),
    "output_tokens": _tokens("completion_tokens", "output_tokens"),
    "embedding": _embedding,
    "model": lambda record: _text_or_none(_field(record.body, "model")),
    "status_code": lambda record: None if record.response is None else record.response.status_code,
    "body": lambda record: None if record.response is None else _json(record.body),
}
# What a value of a named field is, whatever the lines have.
FIELD_KINDS = dict.fromkeys(_FIELDS, "text") | {
    "input_tokens": "int",
    "output_tokens": "int",
    "status_code": "int",
    "embedding": "vector",
}


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_select(given: Sequence[str]) -> tuple[OutputColumn, ...]:
    """The columns of `--select`: NAME, several names with commas, or NAME=EXPRESSION. Raises TableError."""
    columns = [column for text in given for column in _columns(text)]
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise TableError(f"--select names the column {name} twice")
    return tuple(columns)


def _columns(text: str) -> list[OutputColumn]:
    names = [name.strip() for name in text.split(",")]
    if all(_NAME.fullmatch(name) for name in names):
        if unknown := [name for name in names if name not in _FIELDS]:
            raise TableError(
                f"--select {unknown[0]}: there is no field of this name; choose from {', '.join(_FIELDS)}, "
                f"or give an expression: {unknown[0]}=response.body.…"
            )
        return [OutputColumn(name) for name in names]
    name, equals, expression = text.partition("=")
    if not equals or not _NAME.fullmatch(name.strip()):
        raise TableError(f"--select {text!r}: give NAME=EXPRESSION, as in 'id=response.body.id'")
    try:
        return [OutputColumn(name.strip(), jmespath.compile(expression))]
    except RecursionError as error:
        raise TableError(f"--select {name}: the expression is nested too deep") from error
    except jmespath.exceptions.JMESPathError as error:
        raise TableError(
            f"--select {name}: not a JMESPath expression: {str(error).splitlines()[0]}"
        ) from error


def default_columns(first: OutputRecord | None) -> tuple[OutputColumn, ...]:
    """The columns for answers like the first completed one: a vector, a text, or any JSON."""
    if first is not None and _field(first.body, "data", 0, "embedding") is not None:
        names: tuple[str, ...] = ("custom_id", "embedding", "error", "input_tokens")
    elif (
        first is None or _field(first.body, "choices") is not None or _field(first.body, "output") is not None
    ):
        names = ("custom_id", "answer", "finish_reason", "error", "input_tokens", "output_tokens")
    else:
        names = ("custom_id", "status_code", "body", "error")
    return tuple(OutputColumn(name) for name in names)


class SelectFaults:
    """Counts completed lines that an expression could not be applied to."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, column: str, custom_id: str, reason: str) -> None:
        self._counts[column] += 1
        self._first.setdefault(column, f"line {custom_id}: {reason}")

    def notes(self) -> list[str]:
        """One for each column."""
        return [
            f"--select {column} is empty in {count:,} completed lines; the first is {self._first[column]}"
            for column, count in self._counts.items()
        ]


def reader(columns: Sequence[OutputColumn], faults: SelectFaults) -> Callable[[OutputRecord], list[Any]]:
    """A function that reads the values of the columns."""
    getters = [
        _FIELDS[column.name] if column.expression is None else _searching(column, faults)
        for column in columns
    ]
    return lambda record: [get(record) for get in getters]


def _searching(column: OutputColumn, faults: SelectFaults) -> Callable[[OutputRecord], Any]:
    def search(record: OutputRecord) -> Any:
        try:
            return column.expression.search(_document(record))
        # A ValueError is that of a slice whose step is 0.
        except (jmespath.exceptions.JMESPathError, ValueError, RecursionError) as error:
            # A failed line has no answer, which most functions do not accept.
            if record.completed:
                faults.add(column.name, record.custom_id, str(error) or type(error).__name__)
            return None

    return search


def _document(record: OutputRecord) -> dict[str, Any]:
    """What expressions search: the line, and the named fields except `embedding` and `body`."""
    names = ("custom_id", "answer", "finish_reason", "error", "input_tokens", "output_tokens")
    response = record.response
    return {name: _FIELDS[name](record) for name in names} | {
        "id": record.id,
        "response": None if response is None else msgspec.structs.asdict(response),
    }
