"""What `run` was asked for, checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from msgspec.structs import replace

from batchline.app.models.row_tables import RowTable, TextRows
from batchline.app.models.sending import upstream_settings
from batchline.batches.answers import CHECKED_ENDPOINTS, AnswerCheck, InvalidAnswerSchema
from batchline.batches.staging import InvalidStaging, with_max_failed
from batchline.config.settings import UpstreamSettings
from batchline.files.inputs.rendering import (
    CHAT,
    InvalidRowTemplate,
    RowTemplate,
    check_columns,
    check_syntax,
    takes_system,
)
from batchline.model import AnswerRules, RunSettings
from batchline.model.endpoints import ENDPOINTS

# A batch pauses when its first so many lines all fail alike.
_PAUSE_ALIKE = 50
_OWN_KEYWORDS = {"model": "model", "messages": "prompt", "prompt": "prompt", "input": "prompt"}


class RunKeywords(TypedDict, total=False):
    """The keywords of `batchline.run` that have a default."""

    prompt: str | None
    system: str | None
    output: str
    params: Mapping[str, Any] | None
    endpoint: str
    schema: Mapping[str, Any] | None
    api_key_env: str | None
    max_attempts: int | None
    timeout: float | None
    # A number, or "auto", or "auto:N" with a ceiling.
    concurrency: int | str | None
    max_failed: int | str | None
    fresh: bool
    retry_failed: bool
    progress: bool
    database: str | None
    data_dir: str | Path | None


class RowOrder(msgspec.Struct, frozen=True):
    """How rows are run."""

    template: RowTemplate
    settings: RunSettings
    upstream: UpstreamSettings
    # The name of the column.
    output: str
    fresh: bool
    retry_failed: bool
    progress: bool


def row_order(table: RowTable, model: str, upstream: str, given: RunKeywords) -> RowOrder:
    """Raises ValueError and TypeError."""
    if unknown := given.keys() - RunKeywords.__annotations__.keys():
        raise TypeError(f"batchline.run has no keyword {min(unknown)!r}")
    if not isinstance(model, str) or not model:
        raise ValueError("model must be the name of a model")
    server = upstream_settings(
        upstream,
        **{name: given.get(name) for name in ("api_key_env", "max_attempts", "timeout", "concurrency")},
    )
    template = _template(table, model, given)
    settings = replace(server.run_settings(), reserved=True, answers=_rules(template.endpoint, given))
    return RowOrder(
        template,
        _with_failure_limits(settings, given.get("max_failed")),
        server,
        _output(table, given.get("output", "answer")),
        given.get("fresh", False),
        given.get("retry_failed", False),
        given.get("progress", True),
    )


def _template(table: RowTable, model: str, given: RunKeywords) -> RowTemplate:
    endpoint, system = given.get("endpoint", CHAT), given.get("system")
    if endpoint not in ENDPOINTS:
        raise ValueError(f"endpoint {endpoint!r}: give one of {', '.join(sorted(ENDPOINTS))}")
    if system is not None and not takes_system(endpoint):
        raise ValueError(f"system: {endpoint} takes no system message; leave it out")
    prompt = given.get("prompt")
    if prompt is None and isinstance(table, TextRows):
        prompt = "{{ text }}"
    params = dict(given.get("params") or {})
    for name in params.keys() & _OWN_KEYWORDS.keys():
        raise ValueError(f"params: give {name!r} as {_OWN_KEYWORDS[name]}=… instead")
    try:
        for what, source in (("prompt", prompt), ("system", system)):
            if source is not None:
                check_syntax(source, what)
        if prompt is not None:
            check_columns({"prompt": prompt, "system": system})
    except InvalidRowTemplate as error:
        raise ValueError(str(error)) from None
    return RowTemplate(model=model, endpoint=endpoint, prompt=prompt, system=system, params=params)


def _rules(endpoint: str, given: RunKeywords) -> AnswerRules | None:
    schema = given.get("schema")
    if schema is None:
        return None
    if endpoint not in CHECKED_ENDPOINTS:
        raise ValueError(f"schema: answers of {endpoint} have no text to check")
    rules = AnswerRules(schema=msgspec.json.encode(schema).decode())
    try:
        AnswerCheck(rules)
    except InvalidAnswerSchema as error:
        raise ValueError(f"schema: not a JSON Schema: {error}") from None
    return rules


def _with_failure_limits(settings: RunSettings, max_failed: int | str | None) -> RunSettings:
    if max_failed is None:
        return replace(settings, pause_alike=_PAUSE_ALIKE)
    if max_failed == "none":
        return settings
    try:
        return with_max_failed(settings, str(max_failed))
    except InvalidStaging as error:
        raise ValueError(f"max_failed: {error}, or 'none'") from None


def _output(table: RowTable, name: str) -> str:
    taken = {name, f"{name}_error"} & set(table.columns())
    if taken:
        raise ValueError(f"the rows have a column {min(taken)!r} already; give output='another name'")
    return name
