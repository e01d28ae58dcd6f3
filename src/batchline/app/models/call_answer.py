"""The output line of a call, as it was stored."""

import msgspec


class StoredResponse(msgspec.Struct, gc=False):
    status_code: int
    body: msgspec.Raw
    request_id: str | None = None


class StoredFailure(msgspec.Struct, gc=False):
    code: str | None = None
    message: str | None = None


class CallAnswer(msgspec.Struct, gc=False):
    """What became of a call: a response, a failure without one, or a response that does not count."""

    response: StoredResponse | None = None
    error: StoredFailure | None = None

    @property
    def completed(self) -> bool:
        return self.error is None and self.response is not None and 200 <= self.response.status_code < 300


read_answer_line = msgspec.json.Decoder(CallAnswer).decode
