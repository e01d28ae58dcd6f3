"""Usage: the numbers of tokens that a request used."""

from collections.abc import Sequence

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
