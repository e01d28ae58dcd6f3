"""Why a limit of requests in flight is where it is."""

from enum import Enum


class Signal(Enum):
    """What the limit follows now; its value is for people."""

    STARTING = "looking for the limit"
    GROWING = "goodput rises with the limit"
    KNEE = "more in flight would only wait"
    QUEUES = "the upstream queues"
    REFUSED = "the upstream refuses more"
    TIMED_OUT = "requests timed out"
    SLOWER = "the upstream became slower"
    LOAD = "requests wait at the upstream"
    CEILING = "at the ceiling"
    IDLE = "not enough work to tell"
    AS_SET = "as set"
    LOWERED = "lowered by time-outs or refusals"

    @property
    def label(self) -> str:
        """For programs: metrics, reports and the API."""
        return self.name.lower()
