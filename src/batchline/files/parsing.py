"""Parses and validates the lines of an input file, without I/O.

A block of lines is skimmed first: msgspec decodes only the needed fields, in about a microsecond per line. If
any line of the block is unusual, the block is examined line by line, to find the reason why a line is
refused. The skim accepts only what the examination accepts, and in the same way; a property test checks that.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from batchline.model.endpoints import Endpoints
from batchline.model.json_limits import MAX_DEPTH, WRAPPED, is_too_deep, why_not_json

MAX_ERRORS = 100
MAX_CHARACTERS = 512
# Levels of a whole line.
_MAX_DEPTH = MAX_DEPTH + WRAPPED

# Line numbers and ordinals are of type integer in the database.
_MAX_INTEGER = 2**31 - 1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Marks a line that was too long to keep. No real line contains a line feed.
_OVERLONG = b"\n"
# C0 and C1, line separators, and characters that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# An escape in a JSON string: a surrogate pair, half of one (group 1), or any other escape.
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


class Code(StrEnum):
    """Reasons to refuse a line or a whole file."""

    INVALID_JSON_LINE = "invalid_json_line"
    INVALID_UTF8 = "invalid_utf8"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    INVALID_METHOD = "invalid_method"
    INVALID_URL = "invalid_url"
    URL_MISMATCH = "url_mismatch"
    DUPLICATE_CUSTOM_ID = "duplicate_custom_id"
    INVALID_CUSTOM_ID = "invalid_custom_id"
    MODEL_NOT_FOUND = "model_not_found"
    STREAM_NOT_SUPPORTED = "stream_not_supported"
    EMPTY_FILE = "empty_file"
    TOO_MANY_LINES = "too_many_lines"
    TOO_MANY_MODELS = "too_many_models"
    LINE_TOO_LONG = "line_too_long"


class LineError(msgspec.Struct, frozen=True):
    """One reason to refuse a file. `line` is its number in `source`; None for an empty file."""

    code: Code
    message: str
    line: int | None
    param: str | None
    source: str
    # What a line of the source is called: a line, or a row.
    unit: str = "line"


class LineFault(Exception):
    """A line is not valid."""

    def __init__(self, code: Code, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class ReadingRules(msgspec.Struct, frozen=True):
    """Rules and limits for the lines of a file."""

    endpoints: Endpoints = Endpoints()
    # The url that all lines must have; None: any allowed one.
    endpoint: str | None = None
    # The models that are served; None: not known.
    models: frozenset[str] | None = None
    max_lines: int = _MAX_INTEGER
    max_line_bytes: int = 64 * 2**20
    # Each pair of model and url becomes a lane in every batch over the file.
    max_lanes: int = 10_000


class InputLane(msgspec.Struct):
    """The lines with one model and url."""

    no: int
    model: str
    url: str
    total: int = 0


class LineColumns(msgspec.Struct, frozen=True):
    """Valid lines, in columns. Ids and bodies are UTF-8; bodies are unchanged."""

    lane_nos: Sequence[int]
    ordinals: Sequence[int]
    line_nos: Sequence[int]
    custom_ids: list[bytes]
    bodies: list[bytes]


class LineCutter:
    """Cuts blocks into lines. A line that exceeds the limit is not kept in memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def cut(self, block: bytes) -> list[bytes]:
        """The lines that end in this block."""
        lines = block.split(b"\n")
        rest = lines.pop()
        if lines:
            lines[0] = self._complete(lines[0])
            if len(block) > self._max_bytes:
                lines = [line if len(line) <= self._max_bytes else _OVERLONG for line in lines]
        self._keep(rest)
        return lines

    def end(self) -> list[bytes]:
        """The last line, if it has no line feed."""
        return [self._complete(b"")] if self._size else []

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._max_bytes:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def _complete(self, piece: bytes) -> bytes:
        self._keep(piece)
        line = b"".join(self._pieces) if self._size <= self._max_bytes else _OVERLONG
        self._pieces.clear()
        self._size = 0
        return line


class Reader:
    """Reads one file from one or more sources: numbers and checks its lines, and assigns lanes."""

    def __init__(self, rules: ReadingRules) -> None:
        self.line_count = 0
        # True if reading on is useless.
        self.abandoned = False
        self._rules = rules
        self._lanes: dict[tuple[str, str], InputLane] = {}
        self._errors: list[tuple[int, LineError]] = []
        self._next_line_no = 1
        self._sources: list[str] = []
        self._units: list[str] = []
        self._first_line_nos: list[int] = []
        self._cutter = LineCutter(rules.max_line_bytes)

    @property
    def lanes(self) -> list[InputLane]:
        """In the order of their numbers, which is the order of their first lines."""
        return list(self._lanes.values())

    def begin(self, source: str, unit: str = "line") -> None:
        """The next blocks, up to `end`, come from `source`. `unit` is what messages call a line of it."""
        self._sources.append(source)
        self._units.append(unit)
        self._first_line_nos.append(self._next_line_no)

    def feed(self, block: bytes) -> LineColumns:
        return self._read(self._cutter.cut(block))

    def end(self) -> LineColumns:
        return self._read(self._cutter.end())

    def refuse_duplicate(self, line_no: int, custom_id: str, first_line_no: int) -> None:
        """Report a line whose custom_id an earlier line has."""
        source, unit, line = self._position_of(first_line_no)
        where = f"{unit} {line}" if source == self._position_of(line_no)[0] else f"{unit} {line} of {source}"
        message = f"custom_id {custom_id!r} is already used on {where}; custom_ids must be unique"
        self._refuse(line_no, LineFault(Code.DUPLICATE_CUSTOM_ID, message, "custom_id"))

    def errors(self) -> tuple[LineError, ...]:
        """The first errors, in the order of the lines; empty if the file is valid."""
        if not self._errors and not self.line_count:
            empty = "the file contains no requests"
            return (LineError(Code.EMPTY_FILE, empty, None, None, ", ".join(self._sources)),)
        in_order = sorted(self._errors, key=lambda numbered: numbered[0])
        return tuple(error for _, error in in_order[:MAX_ERRORS])

    def _read(self, lines: list[bytes]) -> LineColumns:
        first = self._next_line_no
        if lines and first == self._first_line_nos[-1]:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        self._next_line_no += len(lines)
        return self._skim(lines, first) or self._examine(lines, first)

    def _skim(self, lines: list[bytes], first: int) -> LineColumns | None:
        """Read all lines in a few passes. None, without any change, if a line must be examined."""
        try:
            if not all(map(bytes.isascii, lines)):
                b"\n".join(lines).decode()
            requests = list(map(_decode_request, lines))
            bodies = [bytes(request.body) for request in requests]
            heads = list(map(_decode_head, bodies))
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
            return None
        # Each level has two brackets, so nearly all lines are too short to be too deep.
        if any(_is_too_deep(line) for line in lines if len(line) > 2 * _MAX_DEPTH):
            return None
        custom_ids = [request.custom_id for request in requests]
        if (
            not "".join(custom_ids).isprintable()
            or True in [head.stream for head in heads]
            or self.line_count + len(lines) > self._rules.max_lines
            or self._next_line_no > _MAX_INTEGER
        ):
            return None
        models = [head.model for head in heads]
        urls = [request.url for request in requests]
        if _all_equal(models) and _all_equal(urls):
            routes = [(models[0], urls[0])]
        else:
            routes = list(dict.fromkeys(zip(models, urls, strict=True)))
        fresh = [route for route in routes if route not in self._lanes]
        try:
            for model, url in fresh:
                _check_url(url, self._rules)
                _check_model(model, self._rules)
        except LineFault:
            return None
        if len(self._lanes) + len(fresh) > self._rules.max_lanes:
            return None
        for model, url in fresh:
            self._open_lane(model, url)
        line_nos = range(first, first + len(lines))
        return self._into_lanes(models, urls, line_nos, list(map(str.encode, custom_ids)), bodies)

    def _examine(self, lines: list[bytes], first: int) -> LineColumns:
        """Read line by line: keep valid lines, and record an error for each of the others."""
        models: list[str] = []
        urls: list[str] = []
        line_nos: list[int] = []
        custom_ids: list[bytes] = []
        bodies: list[bytes] = []
        for line_no, line in enumerate(lines, first):
            if self.abandoned:
                break
            if line != _OVERLONG and (not line or line.isspace()):
                continue
            try:
                if self.line_count + len(bodies) >= self._rules.max_lines or line_no > _MAX_INTEGER:
                    self.abandoned = True
                    message = f"the file has more than {self._rules.max_lines:,} lines; split it"
                    raise LineFault(Code.TOO_MANY_LINES, message)
                request = examine(line, self._rules)
                self._open_lane(request.model, request.url)
            except LineFault as fault:
                self._refuse(line_no, fault)
                continue
            models.append(request.model)
            urls.append(request.url)
            line_nos.append(line_no)
            custom_ids.append(request.custom_id.encode())
            bodies.append(request.body)
        return self._into_lanes(models, urls, line_nos, custom_ids, bodies)

    def _open_lane(self, model: str, url: str) -> None:
        if (model, url) in self._lanes:
            return
        if len(self._lanes) >= self._rules.max_lanes:
            message = f"the file has more than {self._rules.max_lanes:,} pairs of model and url; split it"
            raise LineFault(Code.TOO_MANY_MODELS, message, "body.model")
        self._lanes[model, url] = InputLane(len(self._lanes), model, url)

    def _into_lanes(
        self,
        models: list[str],
        urls: list[str],
        line_nos: Sequence[int],
        custom_ids: list[bytes],
        bodies: list[bytes],
    ) -> LineColumns:
        """Give each line the next ordinal of its lane."""
        self.line_count += len(bodies)
        if _all_equal(models) and _all_equal(urls):
            lane = self._lanes[models[0], urls[0]]
            start, lane.total = lane.total, lane.total + len(bodies)
            return LineColumns(
                [lane.no] * len(bodies), range(start, lane.total), line_nos, custom_ids, bodies
            )
        lane_nos, ordinals = [], []
        for route in zip(models, urls, strict=True):
            lane = self._lanes[route]
            lane_nos.append(lane.no)
            ordinals.append(lane.total)
            lane.total += 1
        return LineColumns(lane_nos, ordinals, line_nos, custom_ids, bodies)

    def _refuse(self, line_no: int, fault: LineFault) -> None:
        source, unit, line = self._position_of(line_no)
        error = LineError(fault.code, fault.message, line, fault.param, source, unit)
        self._errors.append((line_no, error))
        if len(self._errors) >= MAX_ERRORS:
            self.abandoned = True

    def _position_of(self, line_no: int) -> tuple[str, str, int]:
        """The source of a line, what it is called there, and its number in the source."""
        nth = bisect_right(self._first_line_nos, line_no) - 1
        return self._sources[nth], self._units[nth], line_no - self._first_line_nos[nth] + 1


def has_control_characters(text: str) -> bool:
    """Whether text could control a terminal or change the direction of text."""
    return _CONTROL.search(text) is not None


class LineRequest(msgspec.Struct, frozen=True):
    """A valid line."""

    custom_id: str
    model: str
    url: str
    body: bytes


def examine(line: bytes, rules: ReadingRules) -> LineRequest:
    """Parse one line. Raises LineFault for its first error."""
    if line == _OVERLONG:
        raise LineFault(Code.LINE_TOO_LONG, f"the line is longer than {rules.max_line_bytes:,} bytes")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise LineFault(Code.INVALID_UTF8, f"byte {error.start + 1} of the line is not UTF-8") from None
    if _is_too_deep(line):
        raise LineFault(Code.INVALID_JSON_LINE, f"nested more than {_MAX_DEPTH} levels deep")
    fields = _object(line)
    if fields is None:
        raise LineFault(Code.INVALID_JSON_LINE, "a line must be a JSON object")

    custom_id = _text(_required(fields, "custom_id"))
    if custom_id is None:
        raise LineFault(Code.INVALID_CUSTOM_ID, "custom_id must be a string", "custom_id")
    if not 1 <= len(custom_id) <= MAX_CHARACTERS:
        message = f"custom_id must have 1 to {MAX_CHARACTERS} characters, not {len(custom_id):,}"
        raise LineFault(Code.INVALID_CUSTOM_ID, message, "custom_id")
    if has_control_characters(custom_id):
        raise LineFault(Code.INVALID_CUSTOM_ID, "custom_id must not contain control characters", "custom_id")

    if _text(_required(fields, "method")) != "POST":
        raise LineFault(Code.INVALID_METHOD, "method must be POST", "method")

    url = _text(_required(fields, "url"))
    _check_url(url, rules)
    assert url is not None

    body = bytes(_required(fields, "body"))
    parameters = _object(body)
    if parameters is None:
        raise LineFault(Code.MISSING_REQUIRED_PARAMETER, "body must be a JSON object", "body")
    model = _text(_required(parameters, "model", "body.model"))
    if not model:
        message = "body.model must be a non-empty string"
        raise LineFault(Code.MISSING_REQUIRED_PARAMETER, message, "body.model")
    _check_model(model, rules)
    if "stream" in parameters and bytes(parameters["stream"]) == b"true":
        message = "body.stream must not be true, because answers are written to a file"
        raise LineFault(Code.STREAM_NOT_SUPPORTED, message, "body.stream")
    return LineRequest(custom_id, model, url, body)


_Short = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_CHARACTERS)]


class _UsualLine(msgspec.Struct, gc=False):
    """A typical line."""

    custom_id: _Short
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Head(msgspec.Struct, gc=False):
    """The fields of a body that are needed here."""

    model: _Short
    stream: bool | None = None


_decode_request = msgspec.json.Decoder(_UsualLine).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


def _object(text: bytes) -> dict[str, msgspec.Raw] | None:
    """The fields of a JSON object, undecoded; None if it is not an object."""
    try:
        return _decode_object(text)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError as error:
        reason = why_not_json(text) or str(error)
        if any(escape[1] for escape in _ESCAPE.finditer(text)):
            reason = "it contains half of a surrogate pair, such as \\ud83d"
        raise LineFault(Code.INVALID_JSON_LINE, f"not valid JSON: {reason}") from None
    except RecursionError:
        raise LineFault(Code.INVALID_JSON_LINE, f"nested more than {_MAX_DEPTH} levels deep") from None


def _text(value: msgspec.Raw) -> str | None:
    """The decoded string; None if the value is not a string."""
    try:
        return _decode_text(value)
    except msgspec.ValidationError:
        return None


def _required(fields: dict[str, msgspec.Raw], name: str, path: str | None = None) -> msgspec.Raw:
    if name not in fields:
        path = path or name
        raise LineFault(Code.MISSING_REQUIRED_PARAMETER, f"{path} is missing", path)
    return fields[name]


def _is_too_deep(line: bytes) -> bool:
    return is_too_deep(line, _MAX_DEPTH)


def _all_equal(values: list[str]) -> bool:
    return values != [] and values.count(values[0]) == len(values)


def _check_url(url: str | None, rules: ReadingRules) -> None:
    if (fault := rules.endpoints.fault(url)) is not None:
        raise LineFault(Code.INVALID_URL, f"url {fault}", "url")
    if rules.endpoint is not None and url != rules.endpoint:
        raise url_mismatch(rules.endpoint)


def _check_model(model: str, rules: ReadingRules) -> None:
    if rules.models is not None and model not in rules.models:
        raise model_not_found(model)
    if len(model) > MAX_CHARACTERS or has_control_characters(model):
        message = f"a model name must have at most {MAX_CHARACTERS} characters and no control characters"
        raise LineFault(Code.MODEL_NOT_FOUND, message, "body.model")


def url_mismatch(endpoint: str) -> LineFault:
    return LineFault(Code.URL_MISMATCH, f"url must be {endpoint}, the endpoint of the batch", "url")


def model_not_found(model: str) -> LineFault:
    displayed = model if len(model) <= MAX_CHARACTERS else model[:MAX_CHARACTERS] + "…"
    return LineFault(
        Code.MODEL_NOT_FOUND,
        f"no configured upstream serves the model {displayed!r}",
        "body.model",
    )
