"""An OpenAI-compatible upstream to try and test against.

It answers every request with a function of its body, runs a request with an `Idempotency-Key` once however
often it is sent, fails on demand in the ways that upstreams fail, and counts what it really executed, so
that whoever called it can be checked from outside.
"""

from batchline.simulate.answers import answer_to
from batchline.simulate.http import Handler
from batchline.simulate.server import Simulator, serve
from batchline.simulate.settings import SimulateSettings

__all__ = ["Handler", "SimulateSettings", "Simulator", "answer_to", "serve"]
