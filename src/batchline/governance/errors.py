"""Errors of governed operations: one type per kind, one code per case, and a message for a person."""

import math


class Refused(Exception):
    """The request was refused. The message is for a person and contains no secret."""

    code = "INVALID_BATCH_REQUEST"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param


class InvalidSubmission(Refused):
    """The request itself is not valid."""


class TooLarge(Refused):
    """The batch has more children than the limits ever allow."""

    code = "BATCH_SIZE_EXCEEDED"


class NotAllowed(Refused):
    """The caller may see the batch, but may not do this."""

    code = "PERMISSION_DENIED"


class NotFound(Refused):
    """It does not exist, or the caller may not see it."""

    code = "BATCH_NOT_FOUND"


class RequestIdReused(Refused):
    """The request_id was used for a different submission."""

    code = "REQUEST_ID_REUSED"


class Conflict(Refused):
    """The batch is not in a state that allows this act. Each act has its own code."""


class LimitReached(Refused):
    """A limit is reached. Trying again later may help."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, limit_type: str, current: int, maximum: int, retry_after: float, message: str) -> None:
        super().__init__(message)
        self.limit_type = limit_type
        self.current_value = current
        self.max_value = maximum
        self.retry_after = max(1, math.ceil(retry_after))
