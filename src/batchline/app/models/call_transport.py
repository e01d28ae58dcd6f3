"""Takes the HTTP requests of the official OpenAI client, and answers them from a batch.

So parameters, types of answers and errors are those of the official client.
"""

import httpx2
import openai

from batchline.app.models.call_outcome import FailureOfCall, read_outcome
from batchline.app.models.call_session import CallSession
from batchline.app.models.refusals import NotInBatch
from batchline.files.parsing import LineFault, LineRequest, ReadingRules, examine
from batchline.model.endpoints import ENDPOINTS

_RULES = ReadingRules()
_VERSION = "/v1"
_TIMEOUT = "timeout"


class CallTransport(httpx2.AsyncBaseTransport):
    """`base` is the path of the client's base URL."""

    def __init__(self, calls: CallSession, base: str) -> None:
        self._calls = calls
        self._base = base.rstrip("/")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        line = self._line(request, await request.aread())
        answer = read_outcome(await self._calls.call(line.model, line.url, line.body))
        response = answer.response
        if response is None or answer.error is not None:
            raise _failure(request, answer.error or FailureOfCall())
        headers = {"content-type": "application/json"}
        if response.request_id:
            headers["x-request-id"] = response.request_id
        return httpx2.Response(
            response.status_code, headers=headers, content=bytes(response.body), request=request
        )

    def _line(self, request: httpx2.Request, body: bytes) -> LineRequest:
        """Raises NotInBatch, before anything is stored."""
        url = _VERSION + request.url.path.removeprefix(self._base)
        if request.method != "POST" or url not in ENDPOINTS:
            raise NotInBatch(
                f"{request.method} {url} cannot be a line of a batch; use the official client for it."
                f" Lines are POST requests to {', '.join(sorted(ENDPOINTS))}"
            )
        if request.url.query:
            raise NotInBatch("extra_query cannot be part of a line")
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise NotInBatch(f"{url} with files cannot be a line of a batch; use the official client for it")
        line = b'{"custom_id":"call","method":"POST","url":"%b","body":%b}' % (url.encode(), body)
        try:
            return examine(line, _RULES)
        except LineFault as fault:
            if fault.param == "body.stream":
                raise NotInBatch(
                    "stream=True: a batch has whole answers only; leave it out, or use the official client"
                ) from None
            raise NotInBatch(str(fault)) from None


def _failure(request: httpx2.Request, error: FailureOfCall) -> openai.APIConnectionError:
    """The error of a call that got no answer from the upstream, after its last attempt."""
    if error.code == _TIMEOUT:
        return openai.APITimeoutError(request=request)
    return openai.APIConnectionError(message=f"{error.code}: {error.message}", request=request)
