"""The verdict on a line, from what a provider's batch API says of it."""

from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer, usage_in
from batchline.model import Completed, Deferred, Failed, Item, Retried, Verdict
from batchline.upstreams.faults import MAX_MESSAGE, message_of
from batchline.upstreams.relay.batch_api import OutputKind, OutputLine

_PASSING = frozenset({408, 409, 425, 429})
# Lines that are to be sent again come back together, so that they make one chunk.
AGAIN = 30.0


def verdict_on(item: Item, output: OutputLine, *, given_back: bool) -> Verdict:
    """`given_back`: lines that did not run are sent again without an attempt, because this worker has
    cancelled the chunk, or sends them directly from now on."""
    match output.kind:
        case OutputKind.ANSWERED if 200 <= output.status < 300:
            return _completed(item, output)
        case OutputKind.ANSWERED:
            return _refused(item, output)
        case OutputKind.EXPIRED | OutputKind.CANCELLED if given_back:
            return Deferred(item)
        case _:
            return failed_attempt(item, output.code, output.message)


def failed_attempt(item: Item, code: str, message: str) -> Verdict:
    """There is no answer to keep: another attempt, if one is left."""
    message = message[:MAX_MESSAGE]
    if item.claim.attempts_left:
        return Retried(item, code, message, AGAIN)
    return Failed(item, failed_line(item, code, message))


def _completed(item: Item, output: OutputLine) -> Verdict:
    try:
        embedded, usage = read_answer(output.body)
    except NotJson as error:
        return failed_attempt(item, "invalid_response", f"The provider's answer is not JSON: {error}")
    line = answered_line(item, output.status, output.request_id or item.idempotency_key, embedded)
    return Completed(item, output.status, line, usage)


def _refused(item: Item, output: OutputLine) -> Verdict:
    status, body = output.status, output.body
    if (status in _PASSING or status >= 500) and item.claim.attempts_left:
        return Retried(item, f"http_{status}", message_of(status, body), AGAIN, usage_in(body))
    line = answered_line(item, status, output.request_id or item.idempotency_key, as_json(body))
    return Failed(item, line, status, usage_in(body))
