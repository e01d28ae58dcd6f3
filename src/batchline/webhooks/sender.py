"""Sends one signed message to one webhook, and returns the outcome.

It connects only to the checked address: without proxy, redirect or second look-up. The certificate is checked
against the URL's name. The body of the answer is not read, because it may be endless.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from http.client import responses as phrases

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import DecodeError, TransportError
from pyreqwest.response import Response

from batchline import __version__
from batchline.store.webhooks import DeliveryAttempt, Message
from batchline.upstreams.faults import MAX_MESSAGE, reason_of
from batchline.upstreams.retry import requested_delay
from batchline.webhooks import signing
from batchline.webhooks.addresses import AddressRefused, Lookup, locate

TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    attempt: DeliveryAttempt
    # Seconds that the receiver asks to wait.
    requested: float = 0.0


@dataclass(frozen=True, slots=True)
class Sender:
    # Allows receivers on this machine and in private networks.
    allow_private: bool = False
    timeout: float = TIMEOUT
    # Resolves names instead of the system.
    lookup: Lookup | None = None

    async def send(self, url: str, message: Message, secrets: Sequence[str]) -> Sent:
        content = signing.body(message)
        try:
            target = await locate(url, allow_private=self.allow_private, lookup=self.lookup)
            builder = (
                ClientBuilder()
                .http1_only()
                .user_agent(f"batchline/{__version__}")
                .follow_redirects(False)
                .no_proxy()
                .resolve(target.host, target.address, target.port)
            )
            async with builder.build() as client:
                request = (
                    client.post(target.url)
                    .header("content-type", "application/json")
                    .headers(signing.signed_headers(message, content, secrets))
                    .timeout(timedelta(seconds=self.timeout))
                    .body_bytes(content)
                    .build_streamed()
                )
                async with request as response:
                    return _outcome(response)
        except AddressRefused as error:
            return Sent(DeliveryAttempt(delivered=False, error=str(error)))
        except (TransportError, DecodeError) as error:
            return Sent(DeliveryAttempt(delivered=False, error=reason_of(error)[:MAX_MESSAGE]))


def _outcome(response: Response) -> Sent:
    status = response.status
    if 200 <= status < 300:
        return Sent(DeliveryAttempt(delivered=True, status=status))
    error = f"the receiver answered {status} {phrases.get(status, '')}".rstrip()
    if 300 <= status < 400:
        error += "; redirects are not followed"
    return Sent(DeliveryAttempt(delivered=False, status=status, error=error), _requested(response))


def _requested(response: Response) -> float:
    def header(name: str) -> str | None:
        try:
            return response.get_header(name)
        except ValueError:
            return None

    return requested_delay(header, time.time())
