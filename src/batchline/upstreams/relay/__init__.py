"""Batch APIs of providers: how chunks of lines are submitted, followed and collected."""

from collections.abc import Mapping
from types import MappingProxyType

from batchline.upstreams.relay.anthropic_batches import AnthropicBatches
from batchline.upstreams.relay.batch_api import BatchApi
from batchline.upstreams.relay.openai_batches import OpenAIBatches

BATCH_API_BY_NAME: Mapping[str, BatchApi] = MappingProxyType(
    {"openai": OpenAIBatches(), "anthropic": AnthropicBatches()}
)
