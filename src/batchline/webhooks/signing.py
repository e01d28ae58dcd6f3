"""Bodies and signatures of webhook messages, as in Standard Webhooks, which OpenAI's clients verify.

A message has the same id in all attempts, so that a receiver can recognize duplicates. Its timestamp is that
of the attempt, so that a receiver can refuse old messages.
"""

import base64
import os
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from standardwebhooks import Webhook as Signer

from batchline.model.ids import BATCH, EVENT, show
from batchline.store.webhooks import Message

# Seconds that the old secret stays valid after a rotation that keeps it.
KEEP_PREVIOUS = 24 * 3600.0

_PREFIX = "whsec_"


def new_secret() -> str:
    """256 random bits, in the format of Standard Webhooks."""
    return _PREFIX + base64.b64encode(os.urandom(32)).decode()


def hint(secret_end: str) -> str:
    """A hint that distinguishes secrets without revealing them."""
    return f"{_PREFIX}…{secret_end}"


def body(message: Message) -> bytes:
    return msgspec.json.encode(
        {
            "id": show(EVENT, message.event_id),
            "object": "event",
            "type": message.type,
            "created_at": int(message.occurred_at.timestamp()),
            "data": {"id": show(BATCH, message.batch_id)},
        }
    )


def signed_headers(
    message: Message, content: bytes, secrets: Sequence[str], at: datetime | None = None
) -> dict[str, str]:
    """The headers, with one signature per secret. A receiver needs to know only one of the secrets."""
    at = at or datetime.now(UTC)
    message_id = show(EVENT, message.event_id)
    signatures = [Signer(secret).sign(message_id, at, content.decode()) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
