"""Usage: the numbers of tokens that a request used."""

from collections.abc import Sequence
from datetime import date

import msgspec


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


NO_USAGE = Usage()


def total_usage(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(usage.input_tokens for usage in usages),
        sum(usage.cached_tokens for usage in usages),
        sum(usage.output_tokens for usage in usages),
        sum(usage.reasoning_tokens for usage in usages),
    )


class TenantUsage(msgspec.Struct, frozen=True):
    """What a tenant has used on a day (UTC), in a longer period, or in batches that still run.

    A batch counts on the day on which it ends. A line counts again each time that a retry runs it.
    """

    tenant: str
    # The first day of the period; None: batches that still run.
    period: date | None
    # Bytes that its files have after the last change of the period, and bytes of files added in it.
    stored: int
    added: int
    batches: int
    # Lines with an outcome; of these, lines that failed, and lines whose answer was copied.
    lines: int
    failed: int
    reused: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    # Nano-dollars.
    cost: int
