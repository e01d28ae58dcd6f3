"""Recipes: everything that an answer depends on, read from a request's body.

The recipe, not the answer, is stored for an Idempotency-Key: rendering it again gives the same bytes, and a
million keys take about 250 MB.
"""

import hashlib
import re
import sys
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from batchline.simulate.refusals import Refusal, unknown_url

BYTES_PER_TOKEN = 4
_DIMENSIONS = 8
_MAX_INPUTS = 2048
_USER = re.compile(rb'"role"\s*:\s*"user"')

_ModelName = Annotated[str, Meta(min_length=1)]
_TokenLimit = Annotated[int, Meta(ge=0)]
_Choices = Annotated[int, Meta(ge=1, le=128)]
_Dimensions = Annotated[int, Meta(ge=1, le=8192)]
_Inputs = str | Annotated[list[str | int | list[int]], Meta(min_length=1)]


class _ChatRequest(Struct, gc=False):
    model: _ModelName
    messages: Raw = Raw(b"")
    response_format: Raw = Raw(b"")
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    n: _Choices | None = None
    stream: bool | None = None


class _CompletionRequest(Struct):
    model: _ModelName
    prompt: _Inputs | None = None
    max_tokens: _TokenLimit | None = None
    n: _Choices | None = None
    stream: bool | None = None


class _EmbeddingRequest(Struct):
    model: _ModelName
    input: _Inputs = ""
    dimensions: _Dimensions | None = None
    encoding_format: Literal["float", "base64"] | None = None


class _ResponseRequest(Struct, gc=False):
    model: _ModelName
    input: Raw = Raw(b"")
    instructions: Raw = Raw(b"")
    max_output_tokens: _TokenLimit | None = None
    stream: bool | None = None


class TextRecipe(Struct, frozen=True, gc=False):
    path: str
    model: str
    digest: bytes
    prompt_tokens: int
    limit: int | None
    choices: int
    # Messages of the user before the last one.
    turns: int = 0
    formatted: bool = False


class VectorRecipe(Struct, frozen=True, gc=False):
    path: str
    model: str
    digest: bytes
    prompt_tokens: int
    vectors: int
    dimensions: int
    as_base64: bool


Recipe = TextRecipe | VectorRecipe


class RecipeReader:
    def __init__(self, seed: int) -> None:
        self._hasher = hashlib.blake2b(digest_size=16, key=str(seed).encode())

    def read(self, path: bytes, body: bytes) -> Recipe:
        """The recipe of a request. Raises `Refusal` where OpenAI would answer 404 or 400."""
        reader = _READERS.get(path)
        if reader is None:
            raise unknown_url(b"POST", path)
        hasher = self._hasher.copy()
        hasher.update(body)
        try:
            if not body.isascii():
                body.decode()  # msgspec does not check fields that it skips
            return reader(body, hasher.digest())
        except msgspec.ValidationError as error:
            raise _invalid(str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Refusal(400, f"The body is not valid JSON: {error}", code="invalid_json") from error


_decode_chat = msgspec.json.Decoder(_ChatRequest).decode
_decode_completion = msgspec.json.Decoder(_CompletionRequest).decode
_decode_embedding = msgspec.json.Decoder(_EmbeddingRequest).decode
_decode_response = msgspec.json.Decoder(_ResponseRequest).decode


def _read_chat(body: bytes, digest: bytes) -> Recipe:
    request = _decode_chat(body)
    _refuse_stream(request.stream)
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return TextRecipe(
        path="/v1/chat/completions",
        model=sys.intern(request.model),
        digest=digest,
        prompt_tokens=_tokens(len(memoryview(request.messages))),
        limit=limit,
        choices=request.n or 1,
        turns=max(0, len(_USER.findall(memoryview(request.messages))) - 1),
        formatted=bool(memoryview(request.response_format)),
    )


def _read_completion(body: bytes, digest: bytes) -> Recipe:
    request = _decode_completion(body)
    _refuse_stream(request.stream)
    prompt = "" if request.prompt is None else request.prompt
    return TextRecipe(
        path="/v1/completions",
        model=sys.intern(request.model),
        digest=digest,
        prompt_tokens=_input_tokens(prompt),
        limit=request.max_tokens,
        choices=_input_count(prompt) * (request.n or 1),
    )


def _read_embedding(body: bytes, digest: bytes) -> Recipe:
    request = _decode_embedding(body)
    return VectorRecipe(
        path="/v1/embeddings",
        model=sys.intern(request.model),
        digest=digest,
        prompt_tokens=_input_tokens(request.input),
        vectors=_input_count(request.input),
        dimensions=request.dimensions or _DIMENSIONS,
        as_base64=request.encoding_format == "base64",
    )


def _read_response(body: bytes, digest: bytes) -> Recipe:
    request = _decode_response(body)
    _refuse_stream(request.stream)
    return TextRecipe(
        path="/v1/responses",
        model=sys.intern(request.model),
        digest=digest,
        prompt_tokens=_tokens(len(memoryview(request.input)) + len(memoryview(request.instructions))),
        limit=request.max_output_tokens,
        choices=1,
    )


def _tokens(size: int) -> int:
    return max(1, size // BYTES_PER_TOKEN)


def _input_count(value: str | list[str | int | list[int]]) -> int:
    """Number of texts in a prompt or input. An array of numbers is one text, given as tokens."""
    if isinstance(value, str) or isinstance(value[0], int):
        return 1
    if len(value) > _MAX_INPUTS:
        raise Refusal(400, f"More than {_MAX_INPUTS} inputs in one request.", code="invalid_value")
    return len(value)


def _input_tokens(value: str | list[str | int | list[int]]) -> int:
    if isinstance(value, str):
        return _tokens(len(value))
    return sum(1 if isinstance(part, int) else _part_tokens(part) for part in value)


def _part_tokens(part: str | list[int]) -> int:
    return _tokens(len(part)) if isinstance(part, str) else len(part)


def _refuse_stream(stream: bool | None) -> None:
    if stream:
        message = "The simulated upstream does not support `stream`. Leave it out."
        raise Refusal(400, message, param="stream", code="stream_not_supported")


def _invalid(message: str) -> Refusal:
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing:
        param = missing[1]
        message = f"Missing required parameter: '{param}'."
        return Refusal(400, message, param=param, code="missing_required_parameter")
    field = re.search(r"`\$\.(\w+)", message)
    return Refusal(400, message, param=field[1] if field else None, code="invalid_value")


_READERS: dict[bytes, Callable[[bytes, bytes], Recipe]] = {
    prefix + path: reader
    for prefix in (b"", b"/v1")
    for path, reader in (
        (b"/chat/completions", _read_chat),
        (b"/completions", _read_completion),
        (b"/embeddings", _read_embedding),
        (b"/responses", _read_response),
    )
}
ENDPOINTS = frozenset(_READERS)
