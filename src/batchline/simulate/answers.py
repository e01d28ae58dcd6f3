"""Answers to requests. An answer depends only on the path, the body and the seed.

Ids, timestamps and numbers come from the body's digest, so that an answer does not depend on the clock.
"""

import base64
import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from batchline.simulate.recipes import Recipe, RecipeReader, TextRecipe, VectorRecipe
from batchline.simulate.vocabulary import words

_EPOCH = 1_767_225_600
_YEAR_S = 31_536_000
_MIN_TOKENS = 8
_TOKEN_SPREAD = 64
# OpenAI caches prompts from 1024 tokens on, in steps of 128.
_CACHED_FROM = 1024
_CACHE_STEP = 128
# Not compressible, like images.
_PADDING = base64.b64encode(hashlib.shake_128(b"padding").digest(48 * 1024))

_CHAT = "/v1/chat/completions"

_Object = dict[str, Any]


def answer_to(path: str, body: bytes, seed: int = 0) -> bytes:
    """The answer of a simulator with this seed, for comparison with a caller's output."""
    return render(RecipeReader(seed).read(path.encode(), body))


def render(recipe: Recipe, text: str = "", bad_answers: int = 0) -> bytes:
    """`text`: of all answers; by default they are words. With it, the first `bad_answers` answers of a chat
    are bad."""
    if isinstance(recipe, VectorRecipe):
        return _encode(_embeddings(recipe))
    answer = _TEXTS[recipe.path](recipe, _figures(recipe))
    if text and recipe.path == _CHAT:
        bad = recipe.turns < bad_answers
        for choice in answer["choices"]:
            _script(choice, None if bad else text, recipe.digest[9])
    return _encode(answer)


def tokens_per_choice(recipe: Recipe) -> int:
    """Tokens that an answer has in each of its choices, which are written at the same time."""
    return 0 if isinstance(recipe, VectorRecipe) else _figures(recipe).tokens


def tokens_of(recipe: Recipe) -> int:
    """All tokens that an answer's `usage` counts."""
    choices = 0 if isinstance(recipe, VectorRecipe) else recipe.choices
    return recipe.prompt_tokens + tokens_per_choice(recipe) * choices


def _script(choice: Any, text: str | None, kind: int) -> None:
    """Give a choice this text; None: make it bad in one of four ways."""
    message = choice["message"]
    if text is not None:
        choice["finish_reason"], message["content"] = "stop", text
        return
    match kind % 4:
        case 0:
            message["content"] = f"Sure! Here is the JSON: {message['content']}"
        case 1:
            message["content"] = ""
        case 2:
            message["content"], message["refusal"] = None, "I cannot help with that."
        case _:
            choice["finish_reason"], message["content"] = "length", '{"label": "sp'


def padded(body: bytes, size: int) -> Iterator[bytes]:
    """An answer with an additional field as padding, in chunks, so that thousands of them need no memory."""
    yield body.removesuffix(b"}") + b',"padding":"'
    missing = size - len(body)
    while missing > 0:
        yield _PADDING[:missing]
        missing -= len(_PADDING)
    yield b'"}'


class _Figures(Struct, frozen=True, gc=False):
    """The numbers in a text answer."""

    id: str
    created: int
    prompt: int
    cached: int
    tokens: int
    """Per choice, including reasoning."""
    reasoning: int
    first_word: int
    cut: bool


def _figures(recipe: TextRecipe) -> _Figures:
    digest = recipe.digest
    wanted = _MIN_TOKENS + digest[0] % _TOKEN_SPREAD
    tokens = wanted if recipe.limit is None else min(wanted, recipe.limit)
    prompt = recipe.prompt_tokens
    return _Figures(
        id=digest.hex(),
        created=_EPOCH + int.from_bytes(digest[1:5], "big") % _YEAR_S,
        prompt=prompt,
        cached=prompt // _CACHE_STEP * _CACHE_STEP if prompt >= _CACHED_FROM and digest[5] % 2 else 0,
        tokens=tokens,
        reasoning=tokens * (digest[6] % 4) // 8,
        first_word=int.from_bytes(digest[7:9], "big"),
        cut=tokens < wanted,
    )


def _chat(recipe: TextRecipe, figures: _Figures) -> _Object:
    finish = "length" if figures.cut else "stop"
    return {
        "id": "chatcmpl-" + figures.id,
        "object": "chat.completion",
        "created": figures.created,
        "model": recipe.model,
        "choices": [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": _text(figures, index),
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": None,
                "finish_reason": finish,
            }
            for index in range(recipe.choices)
        ],
        "usage": _usage(recipe, figures),
        "service_tier": "default",
        "system_fingerprint": "fp_simulated",
    }


def _completion(recipe: TextRecipe, figures: _Figures) -> _Object:
    finish = "length" if figures.cut else "stop"
    return {
        "id": "cmpl-" + figures.id,
        "object": "text_completion",
        "created": figures.created,
        "model": recipe.model,
        "choices": [
            {"text": _text(figures, index), "index": index, "logprobs": None, "finish_reason": finish}
            for index in range(recipe.choices)
        ],
        "usage": _usage(recipe, figures),
        "system_fingerprint": "fp_simulated",
    }


def _usage(recipe: TextRecipe, figures: _Figures) -> _Object:
    completion = figures.tokens * recipe.choices
    return {
        "prompt_tokens": figures.prompt,
        "completion_tokens": completion,
        "total_tokens": figures.prompt + completion,
        "prompt_tokens_details": {"cached_tokens": figures.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": figures.reasoning * recipe.choices,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _response(recipe: TextRecipe, figures: _Figures) -> _Object:
    status = "incomplete" if figures.cut else "completed"
    text = {"type": "output_text", "text": _text(figures, 0), "annotations": []}
    return {
        "id": "resp_" + figures.id,
        "object": "response",
        "created_at": figures.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if figures.cut else None,
        "instructions": None,
        "max_output_tokens": recipe.limit,
        "model": recipe.model,
        "output": [
            {
                "type": "message",
                "id": "msg_" + figures.id,
                "status": status,
                "role": "assistant",
                "content": [text],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": figures.prompt,
            "input_tokens_details": {"cached_tokens": figures.cached},
            "output_tokens": figures.tokens,
            "output_tokens_details": {"reasoning_tokens": figures.reasoning},
            "total_tokens": figures.prompt + figures.tokens,
        },
        "user": None,
        "metadata": {},
    }


def _text(figures: _Figures, choice: int) -> str:
    return words(figures.first_word + choice, figures.tokens - figures.reasoning)


def _embeddings(recipe: VectorRecipe) -> _Object:
    vectors = (_vector(recipe, index) for index in range(recipe.vectors))
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _packed(vector) if recipe.as_base64 else vector,
            }
            for index, vector in enumerate(vectors)
        ],
        "model": recipe.model,
        "usage": {"prompt_tokens": recipe.prompt_tokens, "total_tokens": recipe.prompt_tokens},
    }


def _vector(recipe: VectorRecipe, index: int) -> list[float]:
    """A vector of length one, like real embeddings."""
    noise = hashlib.shake_128(recipe.digest + index.to_bytes(4, "big")).digest(2 * recipe.dimensions)
    # Plus one half, so that no component and no length is zero.
    parts = [part + 0.5 for part in struct.unpack(f">{recipe.dimensions}h", noise)]
    length = sum(part * part for part in parts) ** 0.5
    return [round(part / length, 8) for part in parts]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


_encode = msgspec.json.Encoder().encode

_TEXTS: dict[str, Callable[[TextRecipe, _Figures], _Object]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/responses": _response,
}
