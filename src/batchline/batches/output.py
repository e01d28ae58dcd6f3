"""Output lines: the result of an item as one line of JSON.

A line is compact, valid UTF-8 and contains no raw control character, so only a line feed ends it. An
upstream's answer is checked to be JSON and embedded unchanged; only its usage is decoded.
"""

import codecs
import re
from typing import Annotated

import msgspec

from batchline.model import NO_USAGE, Item, Usage

# Kept bytes of an answer that is not JSON.
_MAX_TEXT = 64 * 1024
# Mending looks at each escape, which takes up to 0.15 s per MiB. An answer that needs it was cut short, so it
# is hardly ever long.
_MAX_MENDED = 2**20
_BLOCK = 2**20

# As the database stores it; more is no number of tokens.
_MAX_COUNT = 2**31 - 1
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None
    reasoning_tokens: _Count | None = None


class _Usage(msgspec.Struct, gc=False):
    """All formats: of chat, completions and embeddings; of responses and images; of /v1/messages, whose
    input_tokens are those that were not cached; and of rerankers, which have a total only."""

    prompt_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens: _Count | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: _Count | None = None
    input_tokens_details: _Details | None = None
    output_tokens: _Count | None = None
    output_tokens_details: _Details | None = None
    # Anything, so that a strange one does not make the others invalid.
    cache_creation_input_tokens: object = None
    cache_read_input_tokens: object = None
    total_tokens: object = None


class _Answer(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _LineResponse(msgspec.Struct, gc=False):
    body: msgspec.Raw


class _LineError(msgspec.Struct, gc=False):
    message: str = ""


class _AnsweredLine(msgspec.Struct, gc=False):
    response: _LineResponse
    error: _LineError | None = None


_NO_DETAILS = _Details()
# Where the answer begins in a line, after the custom_id, in which no quotation mark is unescaped.
_RESPONSE = b',"response":{'
_NO_ERROR = b',"error":null}'

_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_line = msgspec.json.Decoder(_AnsweredLine).decode
_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode
_new_decoder = codecs.getincrementaldecoder("utf-8")

# A surrogate pair, a lone surrogate, or any other escape, so that each backslash is read once.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB]%(hex)b\\u[dD][c-fC-F]%(hex)b|(u[dD][89a-fA-F]%(hex)b)|.)"
    % {b"hex": rb"[0-9a-fA-F]{2}"},
    re.DOTALL,
)


class NotJson(ValueError):
    """The body of an answer is not JSON that can be embedded."""


def answered_line(item: Item, status_code: int, request_id: str, body: bytes) -> bytes:
    """The line of an item with an HTTP answer, good or bad. `body` is JSON from `read_answer` or
    `as_json`."""
    return (
        b'{"id":"%b","custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},"error":null}'
        % (
            item.request_id.encode(),
            _text(item.custom_id),
            status_code,
            _encode(request_id),
            body,
        )
    )


def failed_line(item: Item, code: str, message: str) -> bytes:
    """The line of an item that failed without an HTTP answer."""
    return b'{"id":"%b","custom_id":%b,"response":null,"error":{"code":%b,"message":%b}}' % (
        item.request_id.encode(),
        _text(item.custom_id),
        _encode(code),
        _encode(message),
    )


def invalid_line(line: bytes, code: str, message: str) -> bytes:
    """The line of an item whose answer does not count. It keeps the answer.

    The error comes first: failure_code_v1 finds the code without reading the answer.
    """
    start = line.index(_RESPONSE)
    error = b',"error":{"code":%b,"message":%b}' % (_encode(code), _encode(message))
    return line[:start] + error + line[start : -len(_NO_ERROR)] + b"}"


def response_body(line: bytes) -> bytes:
    """The upstream's answer in a line of `answered_line`, as it was embedded."""
    return bytes(_decode_line(line).response.body)


def read_invalid(line: bytes) -> tuple[str, bytes]:
    """The message and the answer of a line of `invalid_line`. Raises NotJson."""
    try:
        found = _decode_line(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJson(str(error)) from None
    return found.error.message if found.error else "", bytes(found.response.body)


def read_answer(body: bytes) -> tuple[bytes, Usage]:
    """The body to embed, and its usage. Raises NotJson.

    An invalid usage is ignored: the answer was paid for and is kept.
    """
    try:
        usage = _usage_of(body)
        # msgspec does not check strings that it skips.
        if not body.isascii():
            _check_utf8(body)
        # In JSON a raw control character can only be whitespace between tokens.
        if 10 in body or 13 in body or 9 in body:
            body = msgspec.json.format(body, indent=-1)
    except msgspec.DecodeError as error:
        if len(body) > _MAX_MENDED:
            raise NotJson(str(error)) from None
        mended = _ESCAPE.sub(_mend, body)
        if mended == body:
            raise NotJson(str(error)) from None
        return read_answer(mended)
    except (UnicodeDecodeError, RecursionError) as error:
        raise NotJson(str(error)) from None
    return body, usage


def usage_in(body: bytes) -> Usage:
    """The usage that an answer reports, also one that is no success."""
    if b'"usage"' not in body:
        return NO_USAGE
    try:
        return _usage_of(body)
    except (msgspec.DecodeError, RecursionError):
        return NO_USAGE


def as_json(body: bytes) -> bytes:
    """Any body as JSON: unchanged if it is JSON, else as a string."""
    try:
        return read_answer(body)[0]
    except NotJson:
        return _text(body[:_MAX_TEXT])


def _usage_of(body: bytes) -> Usage:
    try:
        usage = _decode_answer(body).usage
    except msgspec.ValidationError:
        # Not an object, or an invalid usage. Decoding stopped there, so the rest must be checked.
        _decode_any(body)
        return NO_USAGE
    if usage is None:
        return NO_USAGE
    return _counted(usage)


def _counted(usage: _Usage) -> Usage:
    taken = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    given = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    read = _count(usage.cache_read_input_tokens)
    beside = read + _count(usage.cache_creation_input_tokens)
    in_tokens = usage.prompt_tokens or (usage.input_tokens or 0) + beside
    out_tokens = usage.completion_tokens or usage.output_tokens or 0
    if not in_tokens and not out_tokens:
        in_tokens = _count(usage.total_tokens)
    return Usage(
        min(in_tokens, _MAX_COUNT), taken.cached_tokens or read, out_tokens, given.reasoning_tokens or 0
    )


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else 0


def _check_utf8(body: bytes) -> None:
    """Raises UnicodeDecodeError. Works in blocks, because decoded text may take four times the memory."""
    decoder, view = _new_decoder(), memoryview(body)
    for start in range(0, len(body), _BLOCK):
        decoder.decode(view[start : start + _BLOCK])
    decoder.decode(b"", final=True)


def _mend(escape: re.Match[bytes]) -> bytes:
    """Replace a lone surrogate by U+FFFD. It remains if an answer is cut inside an emoji; Python's json
    writes it, and most other parsers refuse it."""
    return rb"\ufffd" if escape[1] else escape[0]


def _text(text: bytes) -> bytes:
    """UTF-8 as a JSON string."""
    return _encode(text.decode("utf-8", "replace"))
