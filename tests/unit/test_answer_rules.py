"""What is wrong with an answer, and how the model is asked again."""

import json
from typing import Any

import pytest

from batchline.batches.answers import AnswerCheck, InvalidAnswerSchema
from batchline.executors.checked_request import CheckedRequest, Correction
from batchline.model import AnswerRules

LABEL = {
    "type": "object",
    "properties": {"label": {"enum": ["spam", "ham"]}},
    "required": ["label"],
    "additionalProperties": False,
}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def chat(content: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}


def response(*parts: dict[str, str], status: str = "completed") -> dict[str, Any]:
    return {"object": "response", "status": status, "output": [{"type": "message", "content": [*parts]}]}


def problem(answer: object, rules: AnswerRules) -> str | None:
    return AnswerCheck(rules).problem(json.dumps(answer).encode())


@pytest.mark.parametrize(
    "answer",
    [
        chat('{"label": "spam"}'),
        {"choices": [{"text": '{"label": "ham"}', "finish_reason": "stop"}]},
        response({"type": "output_text", "text": '{"label":'}, {"type": "output_text", "text": ' "ham"}'}),
    ],
)
def test_an_answer_that_matches_the_schema_has_no_problem(answer: object) -> None:
    assert problem(answer, AnswerRules(schema=LABEL)) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (chat("Sure: spam"), "The answer is not JSON: "),
        (chat('```json\n{"label": "spam"}\n```'), "without a code block."),
        (chat('{"label": "eggs"}'), 'at /label: "eggs" is not one of'),
        (chat("{}"), '"label" is a required property'),
        (chat(""), "The answer is empty."),
        (chat(" \n"), "The answer is empty."),
        (chat(None), "The answer is empty."),
        (chat(None, tool_calls=[{"id": "1"}]), "The answer is empty."),
        (chat(None, refusal="I can't help."), 'The answer is a refusal: "I can\'t help."'),
        (response({"type": "refusal", "refusal": "No."}), 'The answer is a refusal: "No."'),
        ({"data": [{"embedding": [1.0]}]}, "The answer has no text."),
        ([], "The answer has no text."),
        ({"choices": [None]}, "The answer is empty."),
    ],
)
def test_a_problem_says_what_is_wrong(answer: object, expected: str) -> None:
    assert expected in (problem(answer, AnswerRules(schema=LABEL)) or "")


def test_each_choice_must_meet_the_rules() -> None:
    both = {"choices": chat('{"label": "spam"}')["choices"] + chat("no")["choices"]}
    assert "not JSON" in (problem(both, AnswerRules(schema=LABEL)) or "")


def test_a_required_finish_reason_is_compared() -> None:
    rules = AnswerRules(finish_reasons=("stop", "completed"))
    assert problem(chat("words"), rules) is None
    assert problem(response({"text": "words"}), rules) is None
    assert problem(chat("wor", "length"), rules) == (
        'The finish_reason is "length", and must be "stop" or "completed".'
    )


def test_without_a_schema_a_call_of_a_tool_is_an_answer() -> None:
    assert problem(chat(None, tool_calls=[{"id": "1"}]), AnswerRules()) is None
    assert problem(chat(None), AnswerRules()) == "The answer is empty."


def test_problems_are_short_whatever_the_answer_has() -> None:
    wrong = {"label": ["x" * 10_000] * 100, **{f"field {number}": "y" * 10_000 for number in range(100)}}
    assert len(problem(chat(json.dumps(wrong)), AnswerRules(schema=LABEL)) or "") < 1_000
    deep = "[" * 100_000
    assert "nested too deeply" in (AnswerCheck(AnswerRules()).problem(deep.encode() + b"]" * 100_000) or "")


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "https://example.com/schema"}])
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswerSchema):
        AnswerCheck(AnswerRules(schema=schema))


# --- The request ------------------------------------------------------------------------------------------

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Is it spam?"}], "seed": 2**60}


def requested(given: object, build: CheckedRequest) -> Any:
    return json.loads(build.body(json.dumps(given).encode()))


def test_the_schema_is_sent_as_the_format() -> None:
    body = requested(REQUEST, CheckedRequest(CHAT, LABEL, None))
    described = {"name": "answer", "schema": LABEL, "strict": True}
    assert body == REQUEST | {"response_format": {"type": "json_schema", "json_schema": described}}
    body = requested({"model": "m", "input": "?"}, CheckedRequest(RESPONSES, LABEL, None))
    assert body["text"]["format"] == {"type": "json_schema", **described}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": False},
        {"type": "array", "items": {"type": "object", "properties": {"a": {}}}},
    ],
)
def test_a_schema_that_openai_would_refuse_in_strict_mode_is_not_strict(schema: dict[str, Any]) -> None:
    body = requested(REQUEST, CheckedRequest(CHAT, schema, None))
    assert "strict" not in body["response_format"]["json_schema"]


def test_the_format_of_a_line_is_kept() -> None:
    given = REQUEST | {"response_format": {"type": "json_object"}}
    assert requested(given, CheckedRequest(CHAT, LABEL, None)) == given


def test_the_model_is_told_its_last_answer_and_what_was_wrong() -> None:
    correction = Correction("spam!", "The answer is not JSON.")
    body = requested(REQUEST, CheckedRequest(CHAT, None, correction))
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == "spam!"
    assert "The answer is not JSON." in body["messages"][2]["content"]
    assert body | {"messages": REQUEST["messages"]} == REQUEST
    body = requested({"model": "m", "input": "Is it spam?"}, CheckedRequest(RESPONSES, None, correction))
    assert [message["content"] for message in body["input"]][:2] == ["Is it spam?", "spam!"]
    silent = requested(REQUEST, CheckedRequest(CHAT, None, Correction("", "The answer is empty.")))
    assert [message["role"] for message in silent["messages"]] == ["user", "user"]


@pytest.mark.parametrize("given", [b"[]", b'{"model":"m","prompt":"x"}'])
def test_a_body_without_messages_stays_as_it_is(given: bytes) -> None:
    correction = Correction("spam!", "The answer is not JSON.")
    assert CheckedRequest(CHAT, None, correction).body(given) == given
    assert CheckedRequest("/v1/completions", LABEL, correction).body(given) == given
