"""How long executions take: a fixed time, chance, and the length of the prompt and of the answer.

What the prefix cache holds of a prompt takes no time.
"""

from random import Random

from batchline.simulate.answers import tokens_per_choice
from batchline.simulate.execution import Execution
from batchline.simulate.prefix_cache import PrefixCache
from batchline.simulate.settings import SimulateSettings


class WorkTime:
    def __init__(self, settings: SimulateSettings) -> None:
        self._settings = settings
        # A separate sequence, so that jitter does not change which requests fail.
        self._jitter = Random(f"jitter {settings.seed}").random
        self._cache = PrefixCache(settings.prefix_cache) if settings.prefix_cache else None
        self.by_length = bool(settings.token_latency_ms or settings.prompt_latency_ms or self._cache)
        self.instant = not (settings.latency_ms or settings.jitter_ms or self.by_length)

    def start(self, execution: Execution) -> float:
        """Seconds that the execution takes, which starts now. Its prompt is cached from now on."""
        milliseconds = self._settings.latency_ms + self._settings.jitter_ms * self._jitter()
        if self.by_length:
            milliseconds += self._of_length(execution)
        return milliseconds / 1000

    def _of_length(self, execution: Execution) -> float:
        tokens = execution.recipe.prompt_tokens
        cached = 0
        if self._cache is not None:
            cached = min(tokens, self._cache.enter(execution.prompt))
            execution.ledger.prompt_tokens += tokens
            execution.ledger.cached_tokens += cached
        written = tokens_per_choice(execution.recipe)
        return (
            tokens - cached
        ) * self._settings.prompt_latency_ms + written * self._settings.token_latency_ms
