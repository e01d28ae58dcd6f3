"""Asynchronous providers: how an item is submitted to each, and how its answers are read.

A provider accepts an item as a task and runs it. Workers poll the task until it has ended. Nothing here
sends a request: `executors.provider` does. Start with `provider`, the protocol.
"""

from collections.abc import Mapping

from batchline.model import PROVIDER_NAMES
from batchline.upstreams.providers.openai_background import OpenAIBackground
from batchline.upstreams.providers.provider import Progress, Provider, TaskState, UnsubmittableItem

PROVIDERS: Mapping[str, Provider] = dict(zip(PROVIDER_NAMES, (OpenAIBackground(),), strict=True))

__all__ = ["PROVIDERS", "Progress", "Provider", "TaskState", "UnsubmittableItem"]
