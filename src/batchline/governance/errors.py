"""Why something that was asked for cannot be: a type for each kind, a code for each case, words."""

import math


class Refused(Exception):
    """What was asked for cannot be. The message is for a person, and holds no secret."""

    code = "INVALID_BATCH_REQUEST"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.code
        self.param = param


class InvalidSubmission(Refused):
    """Something is wrong with the request itself."""


class TooLarge(Refused):
    """More children than any wait would let in."""

    code = "BATCH_SIZE_EXCEEDED"


class NotAllowed(Refused):
    """The caller may see it, and may not do this."""

    code = "PERMISSION_DENIED"


class NotFound(Refused):
    """It is not there, or is nobody's business but its owner's."""

    code = "BATCH_NOT_FOUND"


class RequestIdReused(Refused):
    """The request_id stands for something else already."""

    code = "REQUEST_ID_REUSED"


class Conflict(Refused):
    """Not now, or not any more: each act has a code of its own."""


class LimitReached(Refused):
    """Too much is pending, or it is too soon. Trying again later may help."""

    code = "RATE_LIMIT_EXCEEDED"

    def __init__(self, limit_type: str, current: int, maximum: int, retry_after: float, message: str) -> None:
        super().__init__(message)
        self.limit_type = limit_type
        self.current_value = current
        self.max_value = maximum
        self.retry_after = max(1, math.ceil(retry_after))
