"""A call that waits for its answer, and the name under which a later process finds it again."""

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass

import msgspec

# Bytes of a digest: two different requests never share one.
_DIGEST = 16


@dataclass(slots=True, eq=False)
class PendingCall:
    custom_id: bytes
    body: bytes
    # The output line.
    answer: "asyncio.Future[bytes]"
    # Of its line, once that is stored.
    line_no: int = 0
    # The line was there before this call. If it has failed, the call is sent again.
    inherited: bool = False
    # Lines of this call up to this number do not count: they have failed before.
    after: int = 0

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class CallNames:
    """Names calls after their content. Equal calls of one process are numbered, so each has its own line."""

    def __init__(self) -> None:
        self._seen: Counter[bytes] = Counter()

    def name(self, body: bytes) -> bytes:
        digest = hashlib.blake2b(_canonical(body), digest_size=_DIGEST).hexdigest().encode()
        self._seen[digest] += 1
        return b"%b-%d" % (digest, self._seen[digest])


def _canonical(body: bytes) -> bytes:
    """The same for the same fields in another order."""
    return msgspec.json.encode(msgspec.json.decode(body), order="sorted")
