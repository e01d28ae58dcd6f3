"""The output line of a call, as it was stored."""

import msgspec


class ResponseOfCall(msgspec.Struct, gc=False):
    status_code: int
    body: msgspec.Raw
    request_id: str | None = None


class FailureOfCall(msgspec.Struct, gc=False):
    code: str | None = None
    message: str | None = None


class CallOutcome(msgspec.Struct, gc=False):
    """What became of a call: a response, a failure without one, or a response that does not count."""

    response: ResponseOfCall | None = None
    error: FailureOfCall | None = None

    @property
    def completed(self) -> bool:
        return self.error is None and self.response is not None and 200 <= self.response.status_code < 300


read_outcome = msgspec.json.Decoder(CallOutcome).decode
