"""What governs batches here: the operations that there are, the limits, and how long a batch has."""

from dataclasses import dataclass, field

from batchline.config import LimitSettings
from batchline.engine.operations import Operation
from batchline.engine.preparing import Preparing, PreparingHere
from batchline.engine.refusals import NotThere
from batchline.engine.registry import Registry, UnknownOperation


@dataclass(frozen=True)
class Rules:
    registry: Registry
    limits: LimitSettings
    window: str
    preparing: Preparing = field(default_factory=PreparingHere)

    def operation(self, name: str) -> Operation:
        try:
            return self.registry.get(name)
        except UnknownOperation as error:
            raise NotThere(
                f"There is no operation '{name[:64]}'.", code="OPERATION_NOT_FOUND", param="operation"
            ) from error
