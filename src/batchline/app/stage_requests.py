"""What a worker of an app needs for stages that send requests."""

import os
from collections.abc import Iterable, Sequence

import msgspec

from batchline.config.settings import WorkerSettings
from batchline.executors.http import HttpExecutor
from batchline.model.concurrency import typical_concurrency
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage, missing_stage_keys
from batchline.operations.operation import AnyOperation
from batchline.upstreams.http_upstream import Upstreams
from batchline.upstreams.memory import BodyMemory
from batchline.upstreams.rate_budgets import RateBudgets


class StageRequests(msgspec.Struct, frozen=True):
    """Shared by the worker and its executor. All are None for a worker without such stages."""

    upstreams: Upstreams | None = None
    memory: BodyMemory | None = None
    http: HttpExecutor | None = None


def stage_requests(
    operations: Iterable[AnyOperation],
    settings: WorkerSettings,
    traced: Sequence[str] = (),
    budgets: RateBudgets | None = None,
) -> StageRequests:
    """`traced`: the upstreams whose requests carry the ids of their traces. Raises InvalidApp if an API key
    is missing."""
    stages = [each for each in operations if isinstance(each, HttpStage)]
    if not stages:
        return StageRequests()
    check_stage_keys(stages)
    upstreams = Upstreams(traced=traced, budgets=budgets)
    memory = BodyMemory(settings.body_memory, typical_concurrency(settings.concurrency))
    return StageRequests(upstreams, memory, HttpExecutor(upstreams, memory=memory))


def check_stage_keys(stages: Sequence[HttpStage]) -> None:
    """Raises InvalidApp if an API key is not in the environment."""
    if missing := missing_stage_keys(stages, os.environ):
        raise InvalidApp("; ".join(missing))


def shared_upstream(operation: AnyOperation) -> str | None:
    """The upstream whose slots the items of an operation take; None: they have slots of their own."""
    if isinstance(operation, HttpStage) and operation.shares_upstream:
        return operation.upstream.base_url
    return None
