"""A simulated OpenAI-compatible upstream, for demos and tests. Imports nothing of Batchline.

Its answer is a function of the request's body. It executes a request with an `Idempotency-Key` once, however
often it is sent. On demand it fails as real upstreams do. It counts executions, so that its callers can be
checked from outside. Start with `upstream`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from batchline.simulate.settings import SimulateSettings

if TYPE_CHECKING:
    from batchline.simulate.answers import answer_to
    from batchline.simulate.http import Handler
    from batchline.simulate.server import Simulator, serve

__all__ = ["Handler", "SimulateSettings", "Simulator", "answer_to", "serve"]

# Imported when first used: every command of `batchline` needs the settings, for the options of `simulate`.
_HOMES = {"Handler": "http", "Simulator": "server", "answer_to": "answers", "serve": "server"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
