"""The checker of chaos finds what is planted in the files of a pipeline."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from batchline.model.ids import new_id
from chaos.checker import CheckedBatch, FindingKind, Tally
from chaos.pipeline_app import REFUSED, StageItem
from chaos.pipeline_checker import PlacedPipeline, check_pipeline
from chaos.pipeline_clients import first_items
from chaos.schedule import PipelineOrder, schedule

ORDER = PipelineOrder("some", 0.0, 30)
Lines = list[dict[str, Any]]


def items_of(item: StageItem) -> Iterator[StageItem]:
    """The item, and all that follow from it."""
    yield item
    if not item.refused:
        for child in item.children():
            yield from items_of(child)


def correct() -> tuple[Lines, Lines]:
    """The lines of both files if all is well."""
    items = [each for item in first_items(ORDER) for each in items_of(item)]
    output = [{"custom_id": item.key, "response": {"body": item.value}} for item in items if not item.refused]
    errors = [{"custom_id": item.key, "error": {"code": REFUSED}} for item in items if item.refused]
    return output, errors


def findings(output: Lines, errors: Lines, **other: Any) -> list[FindingKind]:
    encode = msgspec.json.Encoder().encode_lines
    counted = {
        "total": len(output) + len(errors),
        "completed": len(output),
        "failed": len(errors),
        "status": "completed",
    }
    batch = CheckedBatch(
        id=new_id(),
        input_tokens=0,
        output_tokens=0,
        output=encode(output),
        errors=encode(errors),
        **{**counted, **other},
    )
    return [found.kind for found in check_pipeline(PlacedPipeline(ORDER, batch.id), batch, Tally())]


def test_a_pipeline_in_which_all_is_well_gives_no_finding() -> None:
    output, errors = correct()
    assert output
    assert errors
    assert findings(output, errors) == []


@pytest.mark.parametrize("stage", ["plan", "fetch", "store"])
def test_a_lost_item_of_any_stage_is_found(stage: str) -> None:
    output, errors = correct()
    lost = next(line for line in output if line["custom_id"].startswith(stage))
    output.remove(lost)
    kinds = findings(output, errors)
    assert FindingKind.LOST in kinds
    assert (FindingKind.DOUBLED in kinds) == (stage != "store"), "what it has emitted is there without it"


@pytest.mark.parametrize("stage", ["fetch", "store"])
def test_an_item_that_was_emitted_twice_is_found(stage: str) -> None:
    output, errors = correct()
    output.append(next(line for line in output if line["custom_id"].startswith(stage)))
    assert findings(output, errors) == [FindingKind.DOUBLED]


def test_what_a_failed_item_has_emitted_is_found() -> None:
    output, errors = correct()
    failed = next(item for item in first_items(ORDER) if item.refused)
    child = next(failed.children())
    output.append({"custom_id": child.key, "response": {"body": child.value}})
    assert findings(output, errors) == [FindingKind.DOUBLED]


def a_wrong_value(output: Lines, errors: Lines) -> None:
    output[0]["response"]["body"] += 1


def a_wrong_reason(output: Lines, errors: Lines) -> None:
    errors[0]["error"]["code"] = "timeout"


@pytest.mark.parametrize("plant", [a_wrong_value, a_wrong_reason])
def test_the_result_of_another_item_is_found(plant: Callable[[Lines, Lines], None]) -> None:
    output, errors = correct()
    plant(output, errors)
    assert findings(output, errors) == [FindingKind.WRONG]


def test_an_item_may_have_failed_with_its_workers_and_then_emits_nothing() -> None:
    output, errors = correct()
    died = next(item for item in first_items(ORDER) if not item.refused)
    gone = {each.key for each in items_of(died)}
    output = [line for line in output if line["custom_id"] not in gone]
    errors = [line for line in errors if line["custom_id"] not in gone]
    errors.append({"custom_id": died.key, "error": {"code": "worker_died"}})
    assert findings(output, errors) == []


@pytest.mark.parametrize("wrong", [{"total": 1}, {"completed": 1}, {"failed": 0}, {"status": "cancelled"}])
def test_a_wrong_counter_or_end_of_a_pipeline_is_found(wrong: dict[str, Any]) -> None:
    assert findings(*correct(), **wrong) == [FindingKind.WRONG]


def test_a_lost_pipeline_is_found() -> None:
    (found,) = check_pipeline(PlacedPipeline(ORDER, new_id()), None, Tally())
    assert found.kind is FindingKind.LOST


def test_every_round_has_pipelines() -> None:
    assert all(schedule(seed, 1, 4).pipelines for seed in range(20))
