"""What is answered to a request: a function of its path, its body and the seed, and of nothing else.

Ids, timestamps and figures are drawn from the body's digest, since an answer must not depend on the clock.
"""

import base64
import hashlib
import struct
from collections.abc import Callable

import msgspec
from msgspec import Struct

from batchline.simulate.recipes import Recipe, RecipeReader, TextRecipe, VectorRecipe
from batchline.simulate.vocabulary import words

_EPOCH = 1_767_225_600
_YEAR_S = 31_536_000
_FEWEST_TOKENS = 8
_TOKEN_SPREAD = 64
# OpenAI caches prompts from 1024 tokens on, in steps of 128.
_CACHED_FROM = 1024
_CACHE_STEP = 128


def answer_to(path: str, body: bytes, seed: int = 0) -> bytes:
    """What a simulator with this seed answers, to compare with what a caller made of it."""
    return render(RecipeReader(seed).read(path.encode(), body))


def render(recipe: Recipe) -> bytes:
    if isinstance(recipe, VectorRecipe):
        return _render_embeddings(recipe)
    return _RENDERERS[recipe.path](recipe, _figures(recipe))


class _Figures(Struct, frozen=True, gc=False):
    """The numbers that a text answer is made of."""

    created: int
    prompt: int
    cached: int
    tokens: int
    """Of one choice, reasoning included."""
    reasoning: int
    first_word: int
    cut: bool


# The text answers are filled into byte templates: six times as fast as encoding a nested dict, and the
# simulator must never be what a benchmark measures.

_CHAT = (
    b'{"id":"chatcmpl-%b","object":"chat.completion","created":%d,"model":%b,"choices":[%b],'
    b'"usage":%b,"service_tier":"default","system_fingerprint":"fp_simulated"}'
)
_CHAT_CHOICE = (
    b'{"index":%d,"message":{"role":"assistant","content":"%b","refusal":null,"annotations":[]},'
    b'"logprobs":null,"finish_reason":"%b"}'
)
_COMPLETION = (
    b'{"id":"cmpl-%b","object":"text_completion","created":%d,"model":%b,"choices":[%b],"usage":%b,'
    b'"system_fingerprint":"fp_simulated"}'
)
_COMPLETION_CHOICE = b'{"text":"%b","index":%d,"logprobs":null,"finish_reason":"%b"}'
_USAGE = (
    b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":%d,"audio_tokens":0},'
    b'"completion_tokens_details":{"reasoning_tokens":%d,"audio_tokens":0,'
    b'"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}'
)
_RESPONSE = (
    b'{"id":"resp_%b","object":"response","created_at":%d,"status":"%b","error":null,'
    b'"incomplete_details":%b,"instructions":null,"max_output_tokens":%b,"model":%b,'
    b'"output":[{"type":"message","id":"msg_%b","status":"%b","role":"assistant",'
    b'"content":[{"type":"output_text","text":"%b","annotations":[]}]}],'
    b'"parallel_tool_calls":true,"previous_response_id":null,"reasoning":{"effort":null,"summary":null},'
    b'"store":false,"temperature":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],'
    b'"top_p":1.0,"truncation":"disabled","usage":{"input_tokens":%d,'
    b'"input_tokens_details":{"cached_tokens":%d},"output_tokens":%d,'
    b'"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d},"user":null,"metadata":{}}'
)


def _figures(recipe: TextRecipe) -> _Figures:
    digest = recipe.digest
    wanted = _FEWEST_TOKENS + digest[0] % _TOKEN_SPREAD
    tokens = wanted if recipe.limit is None else min(wanted, recipe.limit)
    prompt = recipe.prompt_tokens
    return _Figures(
        created=_EPOCH + int.from_bytes(digest[1:5], "big") % _YEAR_S,
        prompt=prompt,
        cached=prompt // _CACHE_STEP * _CACHE_STEP if prompt >= _CACHED_FROM and digest[5] % 2 else 0,
        tokens=tokens,
        reasoning=tokens * (digest[6] % 4) // 8,
        first_word=int.from_bytes(digest[7:9], "big"),
        cut=tokens < wanted,
    )


def _render_chat(recipe: TextRecipe, figures: _Figures) -> bytes:
    finish = b"length" if figures.cut else b"stop"
    choices = b",".join(
        [_CHAT_CHOICE % (i, _text(figures, i), finish) for i in range(recipe.choices)],
    )
    return _CHAT % (_id(recipe), figures.created, _model(recipe), choices, _usage(recipe, figures))


def _render_completion(recipe: TextRecipe, figures: _Figures) -> bytes:
    finish = b"length" if figures.cut else b"stop"
    choices = b",".join(
        [_COMPLETION_CHOICE % (_text(figures, i), i, finish) for i in range(recipe.choices)],
    )
    return _COMPLETION % (_id(recipe), figures.created, _model(recipe), choices, _usage(recipe, figures))


def _render_response(recipe: TextRecipe, figures: _Figures) -> bytes:
    status = b"incomplete" if figures.cut else b"completed"
    return _RESPONSE % (
        _id(recipe),
        figures.created,
        status,
        b'{"reason":"max_output_tokens"}' if figures.cut else b"null",
        msgspec.json.encode(recipe.limit),
        _model(recipe),
        _id(recipe),
        status,
        _text(figures, 0),
        figures.prompt,
        figures.cached,
        figures.tokens,
        figures.reasoning,
        figures.prompt + figures.tokens,
    )


def _render_embeddings(recipe: VectorRecipe) -> bytes:
    vectors = (_vector(recipe, index) for index in range(recipe.vectors))
    return msgspec.json.encode(
        {
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
    )


def _vector(recipe: VectorRecipe, index: int) -> list[float]:
    """A vector of length one, as embeddings are."""
    noise = hashlib.shake_128(recipe.digest + index.to_bytes(4, "big")).digest(2 * recipe.dimensions)
    # Halves, so that no component, and with it no length, is zero.
    parts = [part + 0.5 for part in struct.unpack(f">{recipe.dimensions}h", noise)]
    length = sum(part * part for part in parts) ** 0.5
    return [round(part / length, 8) for part in parts]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _id(recipe: TextRecipe) -> bytes:
    return recipe.digest.hex().encode()


def _model(recipe: TextRecipe) -> bytes:
    return msgspec.json.encode(recipe.model)


def _text(figures: _Figures, choice: int) -> bytes:
    return words(figures.first_word + choice, figures.tokens - figures.reasoning)


def _usage(recipe: TextRecipe, figures: _Figures) -> bytes:
    completion = figures.tokens * recipe.choices
    return _USAGE % (
        figures.prompt,
        completion,
        figures.prompt + completion,
        figures.cached,
        figures.reasoning * recipe.choices,
    )


_RENDERERS: dict[str, Callable[[TextRecipe, _Figures], bytes]] = {
    "/v1/chat/completions": _render_chat,
    "/v1/completions": _render_completion,
    "/v1/responses": _render_response,
}
