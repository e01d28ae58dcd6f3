"""A small llama model with random weights, in GGUF, the file format of llama.cpp.

It writes nonsense in letters, always the same for the same prompt at temperature 0, and takes less than a
millisecond per token. Its tokens are letters and bytes, so the number of tokens follows from the text.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# How GGUF numbers the types of values and of tokens.
_UINT32, _INT32, _FLOAT32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_ALIGNMENT = 32
_VERSION = 3
# What a chat becomes, with as few tokens as possible.
_TEMPLATE = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"

Weights: TypeAlias = NDArray[np.float32]
Value: TypeAlias = str | int | float | list[str] | list[int] | list[float]


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Larger numbers make it slower. `context` is the most tokens of a prompt and its answer."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    hidden: int = 512
    context: int = 8192


def write_model(path: Path, shape: LlamaShape | None = None) -> None:
    """Write a model: 11 MB in its usual shape."""
    shape = shape or LlamaShape()
    metadata, tensors = _metadata(shape), _tensors(shape)
    infos, data = b"", b""
    for name, weights in tensors.items():
        sizes = struct.pack(f"<{weights.ndim}Q", *reversed(weights.shape))
        infos += _string(name) + struct.pack("<I", weights.ndim) + sizes + struct.pack("<IQ", 0, len(data))
        data += _aligned(weights.tobytes())
    head = b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    path.write_bytes(_aligned(head + infos) + data)


def _tokens() -> Iterator[tuple[str, int]]:
    """The vocabulary: each token with its type."""
    yield from (("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL))
    yield from ((f"<0x{byte:02X}>", _BYTE) for byte in range(256))
    yield from ((letter, _NORMAL) for letter in ("▁", *_LETTERS))
    yield from ((f"▁{letter}", _NORMAL) for letter in _LETTERS)


def _metadata(shape: LlamaShape) -> dict[str, Value]:
    tokens, types = zip(*_tokens(), strict=True)
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.width,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.hidden,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.width // shape.heads,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [-float(number) for number in range(len(tokens))],
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": _TEMPLATE,
    }


def _tensors(shape: LlamaShape) -> dict[str, Weights]:
    random, width, hidden = np.random.default_rng(0), shape.width, shape.hidden
    types = [kind for _, kind in _tokens()]

    def weights(rows: int, columns: int, scale: float) -> Weights:
        return (random.standard_normal((rows, columns)) * scale).astype("<f4")

    ones = np.ones(width, "<f4")
    output = weights(len(types), width, 4 * width**-0.5)
    # Letters only: an answer neither ends early nor has bytes that are no text.
    output[[kind != _NORMAL for kind in types]] = 0
    embedding = weights(len(types), width, 1.0)
    tensors = {"token_embd.weight": embedding, "output_norm.weight": ones, "output.weight": output}
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        tensors |= {f"{block}.{name}_norm.weight": ones for name in ("attn", "ffn")}
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            tensors[f"{block}.{name}.weight"] = weights(width, width, width**-0.5)
        for name in ("ffn_gate", "ffn_up"):
            tensors[f"{block}.{name}.weight"] = weights(hidden, width, width**-0.5)
        tensors[f"{block}.ffn_down.weight"] = weights(width, hidden, hidden**-0.5)
    return tensors


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Value) -> bytes:
    """A value after its type."""
    if isinstance(value, list):
        kind, _ = _typed(value[0])
        items = b"".join(_typed(item)[1] for item in value)
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + items
    if isinstance(value, int):
        # Sizes are unsigned where they stand alone.
        return struct.pack("<II", _UINT32, value)
    kind, packed = _typed(value)
    return struct.pack("<I", kind) + packed


def _typed(value: str | int | float) -> tuple[int, bytes]:
    match value:
        case str():
            return _STRING, _string(value)
        case int():
            return _INT32, struct.pack("<i", value)
        case float():
            return _FLOAT32, struct.pack("<f", value)


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)
