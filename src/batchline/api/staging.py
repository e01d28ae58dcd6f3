"""Fields of requests and answers about batches that run in steps, of governed and of ordinary ones."""

from typing import Annotated

from pydantic import BaseModel, Field

from batchline.batches.staging import MAX_SAMPLE, MAX_STEP_PAUSE, StagingRequest

StepSizes = Annotated[
    str,
    Field(
        max_length=1000,
        examples=["1,2,4,...", "10%"],
        description="Run so many first, and more when these have ended: 1,2,4,... or 1,10,100 or 10%."
        " Stops at max_failed.",
    ),
]
StepPauseSeconds = Annotated[
    float, Field(ge=0, le=MAX_STEP_PAUSE, allow_inf_nan=False, description="Time between two steps.")
]
MaxFailed = Annotated[
    Annotated[int, Field(ge=0, le=999_999_999, strict=True)]
    | Annotated[str, Field(max_length=20, strict=True, examples=["5%"])],
    Field(
        description="Pause when more have failed: a number, or a share. With steps, of those that have begun;"
        " then the default is 0."
    ),
]
Sample = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_SAMPLE,
        strict=True,
        description="Run so many at random first, and the rest after a decision: an approval of a governed"
        " batch, a resume of another.",
    ),
]
ValidateOnly = Annotated[
    bool, Field(strict=True, description="Check everything, limits included, and create nothing.")
]


class StagedRequest(BaseModel):
    """The part of a request that says how the batch runs."""

    steps: StepSizes | None = None
    step_pause_seconds: StepPauseSeconds | None = None
    max_failed: MaxFailed | None = None
    sample: Sample | None = None
    validate_only: ValidateOnly = False

    def staging(self) -> StagingRequest:
        return StagingRequest(self.steps, self.step_pause_seconds, self.sample, self.max_failed)


class StepsObject(BaseModel):
    """How a batch runs in steps."""

    # As they were given; null: there is only a sample.
    sizes: str | None
    pause_seconds: float
    sample: int | None
    # How many steps have begun; 0: none, or the sample.
    step: int
    # How many lines have begun, with those that have ended; null: all.
    lines_begun: int | None
    # When the next step begins, unless the batch is paused or waits for an approval.
    next_step_at: int | None
