"""Usage: the numbers of tokens that a request used."""

import msgspec


class Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


NO_USAGE = Usage()
