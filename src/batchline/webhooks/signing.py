"""What is said to webhooks, and how it is signed: as Standard Webhooks, which OpenAI's clients verify.

A message keeps its id over all attempts, so that a receiver can tell what it has heard before; its timestamp
is that of the attempt, so that a receiver can refuse what is old.
"""

import base64
import os
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from standardwebhooks import Webhook as Signer

from batchline.model.ids import BATCH, EVENT, show
from batchline.store.webhooks import Message

EVENTS = ("batch.completed", "batch.failed", "batch.expired", "batch.cancelled")

# After a rotation that keeps the secret before.
KEEP_PREVIOUS = 24 * 3600.0

_PREFIX = "whsec_"


def new_secret() -> str:
    """256 random bits, as Standard Webhooks write them."""
    return _PREFIX + base64.b64encode(os.urandom(32)).decode()


def hint(secret_end: str) -> str:
    """Enough to tell secrets apart, and nothing more."""
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
    """With a signature by each secret: a receiver accepts the message if it knows one of them."""
    at = at or datetime.now(UTC)
    message_id = show(EVENT, message.event_id)
    signatures = [Signer(secret).sign(message_id, at, content.decode()) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
