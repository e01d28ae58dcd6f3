"""Asynchronous providers: how each is asked to run an item, and how its answers read.

A provider accepts an item as a task, works on it by itself, and is asked for the result later. Nothing here
sends a request: `executors.provider` does. Start with `provider`, the protocol.
"""

from collections.abc import Mapping

from batchline.model import PROVIDER_NAMES
from batchline.upstreams.providers.openai_background import OpenAIBackground
from batchline.upstreams.providers.provider import Progress, Provider, TaskState, UnsubmittableItem

PROVIDERS: Mapping[str, Provider] = dict(zip(PROVIDER_NAMES, (OpenAIBackground(),), strict=True))

__all__ = ["PROVIDERS", "Progress", "Provider", "TaskState", "UnsubmittableItem"]
