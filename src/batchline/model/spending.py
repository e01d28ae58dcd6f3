"""What requests cost, and how much a batch may spend.

Money is counted in whole nano-dollars, so that sums are exact in Python and in PostgreSQL. Prices are in
dollars per million tokens, as providers publish them.
"""

import math

import msgspec

from batchline.model.usage import Usage

ANY_PRICE = "*"
NANO = 1_000_000_000
# A bigint holds it, and so do sums of some.
_MAX_COST = 2**60
# The highest cap on tokens.
MAX_TOKENS = 10**15


class ModelPrice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dollars per million tokens."""

    input: float
    output: float
    # Of tokens that the upstream has cached; None: as other input.
    cached_input: float | None = None
    # The part that a provider's batch API takes off.
    batch_discount: float = 0.5

    def through_batches(self) -> "ModelPrice":
        """The price of what is sent through the provider's batch API."""
        part = 1.0 - self.batch_discount
        cached = None if self.cached_input is None else self.cached_input * part
        return ModelPrice(self.input * part, self.output * part, cached, 0.0)

    def cost(self, usage: Usage) -> int:
        """In nano-dollars, rounded up."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        dollars_per_million = (
            (usage.input_tokens - cached) * self.input
            + cached * (self.input if self.cached_input is None else self.cached_input)
            + usage.output_tokens * self.output
        )
        # Rounded first: 0.15 is a little more than 15/100 in binary.
        return min(math.ceil(round(dollars_per_million * 1000, 3)), _MAX_COST)


class Spending(msgspec.Struct, frozen=True, omit_defaults=True):
    """The prices of a batch's models, and its caps. Stored with the batch: all workers count alike."""

    # By model; ANY_PRICE is for all others.
    prices: dict[str, ModelPrice] = {}
    # Models of the batch that have no price, the first few.
    unpriced: tuple[str, ...] = ()
    # Nano-dollars. None: no cap.
    max_cost: int | None = None
    max_tokens: int | None = None
    # To estimate the input of a request.
    bytes_per_token: float = 3.0
    # The output that is reserved for a request that sets no limit.
    output_tokens: int = 4096

    @property
    def capped(self) -> bool:
        return self.max_cost is not None or self.max_tokens is not None

    def through_batches(self) -> "Spending":
        """As it applies to what is sent through the provider's batch API."""
        prices = {model: price.through_batches() for model, price in self.prices.items()}
        return msgspec.structs.replace(self, prices=prices)

    def price(self, model: str) -> ModelPrice | None:
        return self.prices.get(model) or self.prices.get(ANY_PRICE)

    def cost(self, model: str, usage: Usage) -> int:
        """In nano-dollars; 0 for a model without a price."""
        price = self.price(model)
        return 0 if price is None else price.cost(usage)


def dollars(nano: int) -> float:
    return nano / NANO


def nano_dollars(amount: float) -> int:
    return min(round(amount * NANO), _MAX_COST)


class _Limits(msgspec.Struct, gc=False):
    """Where a request says how much output it wants. What is no number is the upstream's to refuse."""

    max_tokens: object = None
    max_completion_tokens: object = None
    max_output_tokens: object = None
    n: object = None
    # Answers that the upstream writes, of which it returns `n`.
    best_of: object = None
    # Of completions: one prompt, or a list of them. Each has its own answers.
    prompt: msgspec.Raw = msgspec.Raw(b"null")


_decode_limits = msgspec.json.Decoder(_Limits).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
# Their answers are no text.
_NO_OUTPUT = ("/v1/embeddings", "/v1/moderations")
_COMPLETIONS = "/v1/completions"


def largest_usage(spending: Spending, url: str, body: bytes) -> Usage:
    """What a request may use: an estimate of its input, and as much output as it allows."""
    tokens = math.ceil(len(body) / spending.bytes_per_token)
    return Usage(tokens, 0, 0 if url in _NO_OUTPUT else _max_output(spending, url, body))


def _max_output(spending: Spending, url: str, body: bytes) -> int:
    try:
        limits = _decode_limits(body)
        prompts = _prompts(bytes(limits.prompt)) if url == _COMPLETIONS else 1
    except msgspec.DecodeError:
        return spending.output_tokens
    given = (limits.max_completion_tokens, limits.max_output_tokens, limits.max_tokens)
    limit = next((each for each in given if type(each) is int and each >= 0), spending.output_tokens)
    choices = max((each for each in (limits.n, limits.best_of) if type(each) is int), default=1)
    return min(limit * max(choices, 1) * prompts, 2**40)


def _prompts(prompt: bytes) -> int:
    """How many prompts it is. A list of numbers is one, as tokens."""
    if not prompt.startswith(b"["):
        return 1
    return max(1, sum(bytes(each)[:1] in (b'"', b"[") for each in _decode_list(prompt)))
