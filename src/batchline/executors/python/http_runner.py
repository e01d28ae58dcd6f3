"""Runs items of stages that batchline.toml declares: one request to a model per item.

The request goes through the worker's HTTP executor as a line of a batch does, so its retries, its pace and
its limits are the same. The verdict on the request becomes the verdict on the item: an answer completes it,
with the item and the answer as its result, which later stages get in the same settle.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from batchline.batches.answers import CHECKED_ENDPOINTS
from batchline.batches.output import failed_line
from batchline.executors.aliases import with_model
from batchline.executors.executor import Fence
from batchline.executors.http import HttpExecutor
from batchline.executors.python.judge import Judge
from batchline.executors.python.outcome import (
    INVALID_ITEM,
    INVALID_RESULT,
    MAX_EMITTED,
    MAX_RESULT,
    FailedForGood,
    Returned,
    cleaned,
)
from batchline.model import Completed, Failed, Item, Ran, TimedOut, Verdict
from batchline.model.emission import PYTHON, Emission
from batchline.model.failure import error_of_line
from batchline.operations.codec import TypeMismatch
from batchline.operations.http_stage import HttpStage
from batchline.tables.columns import OutputColumn, SelectFaults, TableError, decode_record, reader

NO_ANSWER, INVALID_RESPONSE = "no_answer", "invalid_response"
_EMBEDDINGS = "/v1/embeddings"

_encode = msgspec.json.Encoder().encode
# What is not read is kept as it is.
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class HttpStageRunner:
    """Runs the items of one stage. Closing `http` is up to its owner."""

    def __init__(self, stage: HttpStage, http: HttpExecutor, judge: Judge) -> None:
        self._stage = stage
        self._http = http
        self._judge = judge
        self._settings = stage.run_settings()
        self._answer = answer_reader(stage.settings.endpoint)
        self._next = tuple(PYTHON + name for name in stage.options.emits)

    async def run(self, item: Item) -> Ran:
        try:
            request = self._request(item)
        except TypeMismatch as error:
            return self._judge.verdict(item, FailedForGood(INVALID_ITEM, cleaned(str(error))))
        ran = await self._http.run(request)
        match ran:
            case Completed():
                size = len(item.body) + len(ran.output)
                return await self._http.answers.beside(size, partial(self._completed, item, ran))
            case Failed():
                # The result of a stage is not an answer of an upstream, so its error is not one either.
                code, message = error_of_line(ran.output, ran.status_code)
                return replace(ran, item=item, output=failed_line(item, code, message))
            case TimedOut():
                # Whether an attempt is left depends on the settings of the claim.
                claim = replace(item.claim, settings=request.claim.settings)
                return replace(ran, item=replace(item, claim=claim))
            case _:
                return replace(ran, item=item)

    async def run_alone(self, item: Item) -> Ran:
        return await self.run(item)

    def fenced_by(self, fence: Fence) -> None:
        return

    def wind_down(self) -> None:
        return

    async def close(self) -> None:
        return

    def _request(self, item: Item) -> Item:
        """The item as a line for the upstream. Raises TypeMismatch."""
        stage, claim = self._stage, item.claim
        body = stage.request(item.body)
        if (name := stage.upstream.aliases.get(stage.settings.model)) is not None:
            body = with_model(body, name)
        settings = replace(self._settings, spending=claim.settings.spending)
        sent = replace(claim, url=stage.settings.endpoint, model=stage.settings.model, settings=settings)
        return replace(item, claim=sent, body=body)

    def _completed(self, item: Item, ran: Completed) -> Verdict:
        try:
            answer = self._answer(ran.output)
        except (msgspec.DecodeError, RecursionError, TableError) as error:
            return _unusable(ran, item, INVALID_RESPONSE, cleaned(f"The answer cannot be read: {error}"))
        if answer is None:
            return _unusable(ran, item, NO_ANSWER, "The model's answer has no text.")
        result = _encode({**_fields_of(item.body), self._stage.output: answer})
        if len(result) > MAX_RESULT or len(result) * len(self._next) > MAX_EMITTED:
            message = f"The item with its answer exceeds {MAX_RESULT} bytes."
            return _unusable(ran, item, INVALID_RESULT, message)
        emitted = tuple(Emission(url, item.custom_id, result) for url in self._next)
        verdict = self._judge.verdict(item, Returned(result, emitted))
        assert isinstance(verdict, Completed)
        return replace(verdict, usage=ran.usage)


def _unusable(ran: Completed, item: Item, code: str, message: str) -> Failed:
    """The item has failed, although there is an answer. Its tokens count."""
    return Failed(item, failed_line(item, code, message), usage=ran.usage)


def answer_reader(endpoint: str) -> Callable[[bytes], Any]:
    """A function that reads the answer from an output line: a text, or the vector of an embedding. Other
    endpoints have no text, so the answer is the whole body. None: there is no answer."""
    if endpoint not in CHECKED_ENDPOINTS | {_EMBEDDINGS}:
        return lambda line: decode_record(line).body
    named = "embedding" if endpoint == _EMBEDDINGS else "answer"
    read = reader([OutputColumn(named)], SelectFaults())

    def answer(line: bytes) -> Any:
        (value,) = read(decode_record(line))
        return value

    return answer
