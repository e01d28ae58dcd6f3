"""What the routes for files and uploads share: the file intake and the parameters of a new file."""

from typing import Annotated, Literal

from fastapi import Depends, Header, Request
from pydantic import BaseModel, ConfigDict, Field

from batchline.api.errors import NO_RETRY, ApiError
from batchline.config.settings import ServerSettings
from batchline.files.intake import BATCH_PURPOSE, FileIntake
from batchline.files.parsing import ReadingRules
from batchline.model.endpoints import Endpoints

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
MIN_LIFE, MAX_LIFE = 3600, 2_592_000

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="Repeating a request with the same key and content returns the same file.",
    ),
]


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_LIFE, le=MAX_LIFE, strict=True)]


def _intake(request: Request) -> FileIntake:
    intake: FileIntake = request.app.state.intake
    return intake


InIntake = Annotated[FileIntake, Depends(_intake)]


def check_purpose(purpose: str) -> str:
    if purpose not in PURPOSES:
        message = f"Invalid 'purpose': '{purpose[:64]}' is not one of {', '.join(PURPOSES)}."
        raise ApiError(400, message, code="invalid_value", param="purpose")
    return purpose


def life(settings: ServerSettings, purpose: str, requested: int | None) -> float | None:
    """Seconds until a new file expires; None: never."""
    if requested is not None:
        return float(requested)
    return settings.input_retention if purpose == BATCH_PURPOSE else None


def rules(settings: ServerSettings) -> ReadingRules:
    return ReadingRules(Endpoints(settings.endpoints), max_lines=settings.max_lines)


def too_late() -> ApiError:
    return ApiError(
        408,
        "The upload took too long. Upload the file in parts, or over a faster connection.",
        code="timeout",
        headers=NO_RETRY,
    )
