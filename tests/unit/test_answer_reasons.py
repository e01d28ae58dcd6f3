"""Why an answer does not match its schema: found in child processes, within limits of time."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from batchline.batches.answer_reasons import AnswerReasons
from batchline.batches.answers import AnswerCheck
from batchline.model import AnswerRules

LABEL = json.dumps(
    {"type": "object", "properties": {"label": {"enum": ["spam", "ham"]}}, "required": ["label"]}
)
# To list the errors of a deep expression takes twice as long for each level.
EXPRESSION = {
    "$defs": {
        "expression": {
            "oneOf": [
                {"properties": {"left": {"$ref": "#/$defs/expression"}, "op": {"const": op}}}
                | {"type": "object", "required": ["left"]}
                for op in "+-*/"
            ]
            + [{"type": "number"}]
        }
    },
    "$ref": "#/$defs/expression",
}


@pytest.fixture
def reasons() -> Iterator[AnswerReasons]:
    found = AnswerReasons()
    yield found
    found.close()


def deep(levels: int) -> str:
    value: Any = "not a number"
    for _ in range(levels):
        value = {"left": value, "op": "+"}
    return json.dumps(value)


async def test_a_reason_says_where_and_why(reasons: AnswerReasons) -> None:
    found = await reasons.find(LABEL, '{"label": "eggs"}')
    assert found == ['at /label: the value is not one of "spam" or "ham"']
    assert await reasons.find(LABEL, "{}") == ['"label" is a required property']


async def test_reasons_are_few_and_short(reasons: AnswerReasons) -> None:
    schema = json.dumps({"type": "array", "items": {"enum": ["x" * 10_000]}})
    found = await reasons.find(schema, json.dumps(["y" * 10_000] * 100)) or []
    assert len(found) == 3
    assert all(len(each) < 300 for each in found)


async def test_a_schema_that_refers_to_itself_stops_nothing(reasons: AnswerReasons) -> None:
    schema, answer = json.dumps(EXPRESSION), deep(40)
    body = json.dumps({"choices": [{"message": {"content": answer}}]}).encode()
    problem = AnswerCheck(AnswerRules(schema=schema)).problem(body)
    assert problem is not None
    assert problem.mismatch
    assert await reasons.find(schema, answer) is None
    assert await reasons.find(LABEL, "{}"), "another child answers"
