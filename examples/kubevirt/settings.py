"""Settings of the simulated Kubernetes API."""

from dataclasses import dataclass

from batchline.simulate import SimulateSettings

NAMESPACES = ("default", "test", "staging", "production")


@dataclass(frozen=True)
class ClusterSettings(SimulateSettings):
    """Settings of any simulated upstream (address, latency, faults), and those of a cluster."""

    token: str | None = None
    """The bearer token that the API requires; None: no token."""
    namespaces: tuple[str, ...] = NAMESPACES
    controller_ms: float = 50.0
    """How long controllers take until a machine runs, has stopped or is gone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.controller_ms < 0:
            raise ValueError(f"controller_ms must not be negative, but is {self.controller_ms}")
