"""The rules for governed batches: the registered operations, the limits and the time that a batch has."""

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
    window: str = "7d"
    preparing: Preparing = field(default_factory=PreparingHere)

    def operation(self, name: str) -> Operation:
        """Raises NotFound."""
        try:
            return self.registry.get(name)
        except UnknownOperation as error:
            raise NotFound(
                f"There is no operation '{name[:64]}'.", code="OPERATION_NOT_FOUND", param="operation"
            ) from error
