"""A simulated OpenAI-compatible upstream, for demos and tests. Imports nothing of Batchline.

Its answer is a function of the request's body. It executes a request with an `Idempotency-Key` once, however
often it is sent. On demand it fails as real upstreams do. It counts executions, so that its callers can be
checked from outside. Start with `upstream`.
"""

from batchline.simulate.answers import answer_to
from batchline.simulate.http import Handler
from batchline.simulate.server import Simulator, serve
from batchline.simulate.settings import SimulateSettings

__all__ = ["Handler", "SimulateSettings", "Simulator", "answer_to", "serve"]
