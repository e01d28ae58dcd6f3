"""Attributes of spans, by OpenTelemetry's conventions for generative AI, and `batchline.*` for the rest.

https://github.com/open-telemetry/semantic-conventions-genai, as of November 2026 (status: development).

Nothing here is text that a user or a model wrote: no prompt, no answer, no custom_id, no message of an error.
Names that an upstream chooses, such as that of a model, are left out unless they look like names.
"""

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from batchline.model import NO_USAGE, Completed, Failed, Item, Retried, Usage, Verdict, ids
from batchline.model.failure import displayed_code, error_of_line
from batchline.traces.span import Attributes, AttributeValue

# The operation and, for OpenAI's two ways to chat, the kind of API.
_OPERATIONS = {
    "/v1/chat/completions": ("chat", "chat_completions"),
    "/v1/responses": ("chat", "responses"),
    "/v1/completions": ("text_completion", None),
    "/v1/embeddings": ("embeddings", None),
}
# In the body of a request, by their names in a trace. OpenAI has had several names for the same limit.
_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
_WHOLE = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens", "top_k", "seed", "n"})
# Larger bodies are not read for their parameters: that would take too long on the event loop.
_MAX_READ = 64 * 1024
_MAX_INTEGER = 2**63
_NAME = re.compile(r"[A-Za-z0-9][\w.:/@+-]{0,199}", re.ASCII)

_Parameters = msgspec.defstruct("_Parameters", [(name, Any, None) for name in _PARAMETERS], gc=False)
_read_parameters = msgspec.json.Decoder(_Parameters).decode


class _TracedChoice(msgspec.Struct, gc=False):
    finish_reason: Any = None


class _TracedBody(msgspec.Struct, gc=False):
    id: Any = None
    model: Any = None
    choices: list[_TracedChoice] = []


class _AnswerEnvelope(msgspec.Struct, gc=False):
    body: _TracedBody


class _NamedAnswer(msgspec.Struct, gc=False):
    response: _AnswerEnvelope


_read_line = msgspec.json.Decoder(_NamedAnswer).decode


def line_attributes(item: Item) -> dict[str, AttributeValue]:
    """Which line of which batch, and the attempt."""
    claim = item.claim
    return {
        "batchline.batch.id": ids.show(ids.BATCH, claim.batch_id),
        "batchline.lane.id": claim.lane_id,
        "batchline.ordinal": item.ordinal,
        "batchline.line": item.line_no,
        "batchline.attempt": claim.attempt,
    }


def request_parameters(item: Item) -> dict[str, int | float]:
    """The numbers of a request's body that decide how a model answers it."""
    if item.claim.url not in _OPERATIONS or len(item.body) > _MAX_READ:
        return {}
    try:
        found = _read_parameters(item.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    values = {name: getattr(found, name) for name in _PARAMETERS}
    return {
        _PARAMETERS[name]: value if name in _WHOLE else float(value)
        for name, value in values.items()
        if _is_number(value, whole=name in _WHOLE) and (name, value) != ("n", 1)
    }


def _is_number(value: Any, *, whole: bool) -> bool:
    return type(value) in ((int,) if whole else (int, float)) and -_MAX_INTEGER < value < _MAX_INTEGER


def request_name(item: Item) -> str:
    operation, _ = _OPERATIONS.get(item.claim.url, (None, None))
    if item.claim.task_id is not None:
        return "poll task"
    if operation is None:
        return "request"
    return f"{operation} {model}" if (model := _name(item.claim.model)) else operation


def request_attributes(item: Item) -> dict[str, AttributeValue]:
    """What is known before the answer."""
    found: dict[str, AttributeValue] = dict(line_attributes(item))
    operation, api = _OPERATIONS.get(item.claim.url, (None, None))
    if operation is not None:
        # All upstreams speak OpenAI's API. Which product answers, server.address may tell.
        found |= {"gen_ai.operation.name": operation, "gen_ai.provider.name": "openai"}
        if model := _name(item.claim.model):
            found["gen_ai.request.model"] = model
    if api is not None:
        found["openai.api.type"] = api
    if item.trace is not None:
        found |= item.trace.parameters | _server(item.trace.upstream)
    return found


def answer_attributes(verdict: Verdict) -> Attributes:
    """What the answer says, and what it used."""
    found: dict[str, AttributeValue] = {}
    match verdict:
        case Completed():
            found = {"http.response.status_code": verdict.status_code, **_answered(verdict.output)}
            found |= _used(verdict.usage)
        case Failed():
            if verdict.status_code is not None:
                found["http.response.status_code"] = verdict.status_code
            found |= _used(verdict.usage)
        case Retried():
            status = verdict.error_code.removeprefix("http_")
            if status != verdict.error_code and status.isdecimal():
                found["http.response.status_code"] = int(status)
            found |= _used(verdict.usage)
    return found


def error_type(verdict: Verdict) -> str | None:
    """A code for what went wrong; None if nothing did. A status of HTTP is its number."""
    match verdict:
        case Failed():
            code = error_of_line(verdict.output, verdict.status_code)[0]
        case Retried():
            code = verdict.error_code
        case _:
            return None
    return displayed_code(code.removeprefix("http_"))


def _answered(output: bytes) -> dict[str, AttributeValue]:
    """Names in the answer."""
    if len(output) > _MAX_READ:
        return {}
    try:
        body = _read_line(output).response.body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    found: dict[str, AttributeValue] = {}
    if answer_id := _name(body.id):
        found["gen_ai.response.id"] = answer_id
    if model := _name(body.model):
        found["gen_ai.response.model"] = model
    reasons = [_name(choice.finish_reason) for choice in body.choices[:100]]
    if reasons and all(reasons):
        found["gen_ai.response.finish_reasons"] = [reason for reason in reasons if reason is not None]
    return found


def _used(usage: Usage) -> dict[str, AttributeValue]:
    if usage == NO_USAGE:
        return {}
    found: dict[str, AttributeValue] = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.reasoning_tokens:
        found["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    return found


def _server(upstream: str | None) -> dict[str, AttributeValue]:
    """The host and port alone: the rest of a URL may hold a key."""
    if upstream is None:
        return {}
    try:
        parts = urlsplit(upstream)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return {}
    return {"server.address": parts.hostname, "server.port": port} if parts.hostname else {}


def _name(value: Any) -> str | None:
    return value if type(value) is str and _NAME.fullmatch(value) else None
