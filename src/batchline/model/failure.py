"""Why items fail: the cause of an error, without the parts of its message that vary from item to item.

Items whose errors differ only in numbers, times, ids and quoted text have the same cause. Its `key` is a hash
of its code and message, so it is the same in every batch and after any restart. Messages come from upstreams
and may be hostile: what is read and kept of one is bounded, and each pattern is linear in that bound.
"""

import re
from functools import lru_cache
from hashlib import blake2b
from http.client import responses as phrases
from typing import Any

import msgspec

MAX_MESSAGE = 500

# A longer error line is not read: decoding it would block the event loop. Its status code is its cause.
_MAX_LINE = 64 * 1024
_MAX_CODE = 64
_MAX_KEPT = 200
_KEY_BYTES = 6

_VARIABLE = re.compile(
    r"""
    (?P<time>(?<![\w\-])\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)
    | (?P<uuid>\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b)
    # Quoted text of more than one word, or long. A short word is a name: of a model, or of a parameter. What
    # follows its end is not quoted.
    | (?P<quote>(?<!\w)(?P<mark>["`])(?![^\s"`]{1,60}(?P=mark))[^"`]*(?P=mark))
    | (?P<single>(?<!\w)'(?![^\s']{1,60}')[^']*'(?!\w))
    # A number with a short unit, as 1,024, 0.5s, 1m30s, 10.0.0.1:80. The 5 of gpt-5-mini is part of a name.
    | (?P<number>(?<![\w.\-])\d[\d.,:]*(?<![.,:])(?:[a-zA-Z%]{1,2}(?:\d+[a-zA-Z]{1,2})*)?(?![\w\-]))
    # An id, as in req_011CSHoEeqs5C35K2UUqR7Fy.
    | (?P<word>[0-9A-Za-z]{10,})
    """,
    re.VERBOSE,
)
_ANSWERED = re.compile(r"^The upstream answered \d{3}\s*")
_SPACE = re.compile(r"\s+")
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_STRING = rb'"(?:[^"\\]|\\.)*"'
_ERROR_FIRST = re.compile(
    rb'\{"id":%(s)b,"custom_id":%(s)b,"error":(\{"code":%(s)b,"message":%(s)b\})' % {b"s": _STRING}
)


class Cause(msgspec.Struct, frozen=True):
    """Why items failed. `code`: `http_404` if the upstream answered, else as in docs/reference/files.md."""

    key: str
    code: str
    message: str


# Failures of causes that are not listed: the list of a batch is bounded.
OTHER = Cause("other", "", "other causes")


class CauseCount(msgspec.Struct, frozen=True):
    """A cause, and how many items of a batch it concerns."""

    key: str
    code: str
    message: str
    # Items that have failed for good.
    count: int
    # Items that wait for another try. An estimate if very many do.
    retrying: int
    # The custom_id of one of them; None: unknown.
    example: str | None


def cause(code: str, message: str) -> Cause:
    return _cause(code[:_MAX_CODE], message[:MAX_MESSAGE])


def cause_of_line(line: bytes, status_code: int | None, custom_id: bytes = b"") -> Cause:
    """The cause in a finished error line: in the upstream's answer, or in the error of an item without one.
    `custom_id` is a part that varies."""
    code, message = error_of_line(line, status_code)
    name = custom_id.decode("utf-8", "replace")
    # An ordinary word may be a custom_id, too.
    named = len(name) > 2 and any(map(str.isdigit, name))
    return cause(code, message.replace(name, "…") if named else message)


def said_by(body: bytes) -> str | None:
    """What an error answer says; None: nothing that can be read."""
    try:
        problem = _decode_problem(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    error = problem.error.get("message") if isinstance(problem.error, dict) else problem.error
    said = (text for text in (error, problem.message, problem.detail) if isinstance(text, str) and text)
    return next(said, None)


class _Problem(msgspec.Struct, gc=False):
    """Where upstreams say what is wrong: OpenAI in error.message, others in message, FastAPI in detail."""

    error: Any = None
    message: Any = None
    detail: Any = None


class _Answered(msgspec.Struct, gc=False):
    status_code: int
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Unanswered(msgspec.Struct, gc=False):
    code: str
    message: str = ""


class _ErrorLine(msgspec.Struct, gc=False):
    response: _Answered | None = None
    error: _Unanswered | None = None


_decode_problem = msgspec.json.Decoder(_Problem).decode
_decode_line = msgspec.json.Decoder(_ErrorLine).decode


def displayed_code(code: str) -> str:
    """The code for logs and traces. Some upstreams write sentences into it, which may quote a prompt."""
    return code if _CODE.fullmatch(code) else "other"


def error_of_line(line: bytes, status_code: int | None) -> tuple[str, str]:
    """The code and the message of a finished error line."""
    unread = "failed" if status_code is None else f"http_{status_code}"
    if len(line) > _MAX_LINE:
        return _first_error(line) or (unread, "")
    try:
        found = _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return unread, ""
    if found.error is not None:
        return found.error.code, found.error.message
    if found.response is not None:
        return f"http_{found.response.status_code}", said_by(bytes(found.response.body)) or ""
    return unread, ""


def _first_error(line: bytes) -> tuple[str, str] | None:
    """The error of a large line that has it before its answer, which did not count."""
    found = _ERROR_FIRST.match(line, 0, _MAX_LINE)
    if found is None:
        return None
    error = msgspec.json.decode(found[1], type=_Unanswered)
    return error.code, error.message


@lru_cache(maxsize=1024)
def _cause(code: str, message: str) -> Cause:
    """Cached, because a thousand items usually fail with the same words."""
    code, text = _plain(code), _ANSWERED.sub("", _plain(message))
    text = _shortened(_VARIABLE.sub(_constant, text).rstrip(".")) or _phrase(code)
    digest = blake2b(f"{code}\0{text}".encode("utf-8", "replace"), digest_size=_KEY_BYTES)
    return Cause(digest.hexdigest(), code, text)


def _plain(text: str) -> str:
    """On one line, without control characters and halves of surrogate pairs."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return _SPACE.sub(" ", text).strip()


def _constant(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "number":
            return "N"
        case "word":
            return "…" if sum(map(str.isdigit, found[0])) > 1 else found[0]
        case "quote" | "mark" | "single":
            return f"{found[0][0]}…{found[0][0]}"
        case _:
            return "…"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_KEPT else f"{text[: _MAX_KEPT - 1]}…"


def _phrase(code: str) -> str:
    """What the status code means."""
    status = code.removeprefix("http_")
    return phrases.get(int(status), "") if re.fullmatch(r"[0-9]{3}", status) else ""
