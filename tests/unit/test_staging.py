"""Steps, samples and limits of failures, as users write them."""

import pytest

from batchline.batches.staging import AT_ONCE, InvalidStaging, StagingRequest, parse_steps, staged, with_steps
from batchline.model import RunSettings, StepPlan


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("1,2,4,...", StepPlan(("1", "2", "4"), growth=2.0)),
        ("1, 10 , …", StepPlan(("1", "10"), growth=10.0)),
        ("5,5,...", StepPlan(("5", "5"), growth=1.0)),
        ("1,10,100", StepPlan(("1", "10", "100"))),
        ("10%", StepPlan(("10%",), growth=1.0)),
        ("2.5 %", StepPlan(("2.5%",), growth=1.0)),
        ("100", StepPlan(("100",), growth=1.0)),
        ("1%,2%,...", StepPlan(("1%", "2%"), growth=2.0)),
        ("1,100%", StepPlan(("1", "100%"))),
    ],
)
def test_steps_are_read_as_they_are_written(text: str, plan: StepPlan) -> None:
    assert parse_steps(text) == plan
    displayed = plan.text
    assert displayed is not None
    assert parse_steps(displayed) == plan, "what is displayed means the same"


WRONG = ("", ",", "...", "0", "-1", "1.5", "x", "1,,2", "1,...,2", "0%", "101%", "10000000000")


@pytest.mark.parametrize("text", [*WRONG, "4,2,...", "1,10%,...", "1,1001,...", ",".join(["1"] * 101)])
def test_other_steps_are_refused(text: str) -> None:
    with pytest.raises(InvalidStaging) as refused:
        parse_steps(text)
    assert refused.value.param == "steps"


def test_a_batch_in_steps_stops_at_the_first_failure_unless_told_otherwise() -> None:
    assert staged(RunSettings(), steps="1").max_failed == 0
    assert staged(RunSettings(), steps="1", max_failed=5).max_failed == 5
    relative = staged(RunSettings(), steps="1", max_failed="2.5%")
    assert (relative.max_failed, relative.max_failed_percent) == (None, 2.5)
    assert staged(RunSettings(), sample=3).max_failed is None
    assert StagingRequest(max_failed="7").applied(RunSettings()).max_failed == 7


def test_a_request_without_staging_changes_nothing() -> None:
    assert AT_ONCE.applied(RunSettings()) == RunSettings()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"pause": 1.0}, "step_pause_seconds"),
        ({"steps": "1", "pause": -1.0}, "step_pause_seconds"),
        ({"steps": "1", "pause": 8 * 86_400.0}, "step_pause_seconds"),
        ({"sample": 0}, "sample"),
        ({"sample": 10_001}, "sample"),
        ({"max_failed": "5 lines"}, "max_failed"),
        ({"max_failed": "100.1%"}, "max_failed"),
        ({"max_failed": -1}, "max_failed"),
    ],
)
def test_wrong_staging_names_its_parameter(options: dict[str, float | str], param: str) -> None:
    with pytest.raises(InvalidStaging) as refused:
        staged(RunSettings(), **options)  # type: ignore[arg-type]
    assert refused.value.param == param


def test_a_plan_keeps_what_else_was_set() -> None:
    settings = with_steps(RunSettings(max_attempts=9), "10%", pause=60, sample=5)
    assert settings.max_attempts == 9
    assert settings.steps == StepPlan(("10%",), growth=1.0, pause=60, sample=5)
