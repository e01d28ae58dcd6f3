"""The share of requests that an upstream refuses whatever the limit is (docs/decisions/0025)."""

import math

from batchline.upstreams.answer_window import AnswerWindow

# So many more than usual are more than chance.
_MORE_THAN_USUAL = 0.02


class UsualRefusals:
    """The share of requests that are refused at a limit that is not too high. Older ones count less."""

    def __init__(self) -> None:
        self._requests = self._refusals = 0.0
        self.share = self._proven = 0.0

    def add(self, window: AnswerWindow) -> None:
        """Learn from it. A few refusals in a short window prove nothing, so not from all of them."""
        self._add(window, min(window.refusals, max(self._proven, _MORE_THAN_USUAL) * _requests(window)))

    def accept(self, window: AnswerWindow) -> None:
        """A lower limit has shown that its refusals are usual."""
        self._add(window, window.refusals)
        self._proven = self.share

    def _add(self, window: AnswerWindow, refusals: float) -> None:
        self._requests = self._requests * 0.9 + _requests(window)
        self._refusals = self._refusals * 0.9 + refusals
        self.share = self._refusals / self._requests if self._requests else 0.0

    def is_exceeded(self, window: AnswerWindow) -> bool:
        """By more than chance and two percent."""
        usual = self.share * _requests(window)
        return window.refusals > usual + 3 * math.sqrt(usual) + _MORE_THAN_USUAL * _requests(window) + 1


def _requests(window: AnswerWindow) -> int:
    return window.answers + window.refusals
