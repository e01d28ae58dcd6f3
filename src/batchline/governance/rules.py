"""What governs batches here: the operations that there are, the limits, and how long a batch has."""

from dataclasses import dataclass, field

from batchline.config.settings import LimitSettings
from batchline.governance.errors import NotFound
from batchline.governance.operations import Operation
from batchline.governance.preparation import Preparing, PreparingHere
from batchline.governance.registry import Registry, UnknownOperation


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
            raise NotFound(
                f"There is no operation '{name[:64]}'.", code="OPERATION_NOT_FOUND", param="operation"
            ) from error
