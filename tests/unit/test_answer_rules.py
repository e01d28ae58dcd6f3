"""What is wrong with an answer, and how the model is asked again."""

import json
from typing import Any

import pytest

from batchline.batches.answers import AnswerCheck, AnswerProblem, InvalidAnswerSchema
from batchline.executors.checked_request import AnswerFormat, Correction, checked_request
from batchline.model import AnswerRules

LABEL = {
    "type": "object",
    "properties": {"label": {"enum": ["spam", "ham"]}},
    "required": ["label"],
    "additionalProperties": False,
}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


def chat(content: object, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content, **message}, "finish_reason": finish}]}


def response(*parts: dict[str, str], status: str = "completed") -> dict[str, Any]:
    return {"object": "response", "status": status, "output": [{"type": "message", "content": [*parts]}]}


def found(answer: object, rules: AnswerRules) -> AnswerProblem | None:
    return AnswerCheck(rules).problem(json.dumps(answer).encode())


def problem(answer: object, rules: AnswerRules) -> str | None:
    wrong = found(answer, rules)
    return None if wrong is None else wrong.message


def schema_rules(schema: object) -> AnswerRules:
    return AnswerRules(schema=json.dumps(schema))


@pytest.mark.parametrize(
    "answer",
    [
        chat('{"label": "spam"}'),
        {"choices": [{"text": '{"label": "ham"}', "finish_reason": "stop"}]},
        response({"type": "output_text", "text": '{"label":'}, {"type": "output_text", "text": ' "ham"}'}),
        # vLLM returns the thoughts of a model as an output of its own, Mistral as a part of the content.
        {
            "status": "completed",
            "output": [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Well, a prize …"}]},
                {"type": "message", "content": [{"type": "output_text", "text": '{"label": "spam"}'}]},
            ],
        },
        chat([{"type": "thinking", "thinking": []}, {"type": "text", "text": '{"label": "spam"}'}]),
    ],
)
def test_an_answer_that_matches_the_schema_has_no_problem(answer: object) -> None:
    assert problem(answer, schema_rules(LABEL)) is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (chat("Sure: spam"), "The answer is not JSON: "),
        (chat('```json\n{"label": "spam"}\n```'), "without a code block."),
        (chat('{"label": "eggs"}'), "The answer does not match the schema."),
        (chat("[1, 2]"), "The answer does not match the schema."),
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
    assert expected in (problem(answer, schema_rules(LABEL)) or "")


def test_each_choice_must_meet_the_rules() -> None:
    both = {"choices": chat('{"label": "spam"}')["choices"] + chat("no")["choices"]}
    assert "not JSON" in (problem(both, schema_rules(LABEL)) or "")


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


def test_of_several_choices_the_wrong_one_is_named() -> None:
    both = {"choices": chat('{"label": "spam"}')["choices"] + chat("no")["choices"]}
    wrong = found(both, schema_rules(LABEL))
    assert wrong is not None
    assert wrong.text == "no"


def test_answers_that_are_very_large_or_deep_are_refused_quickly() -> None:
    many = chat("[" + ",".join(["[]"] * 500_000) + "]")
    assert "too many to check" in (problem(many, schema_rules({"type": "array"})) or "")
    deep = b"[" * 100_000 + b"]" * 100_000
    nested = AnswerCheck(AnswerRules()).problem(b'{"choices":[{"message":{"content":%b}}]}' % deep)
    assert nested == AnswerProblem("The answer is nested too deeply.")
    assert "not JSON" in (problem(chat("[" * 5_000 + "]" * 5_000), schema_rules({})) or "")


def test_fields_that_are_not_needed_are_not_decoded() -> None:
    # Valid JSON, and no number that Python could hold.
    answer = b'{"choices":[{"message":{"content":"words"},"logprobs":{"content":[1e999]}}]}'
    assert AnswerCheck(AnswerRules()).problem(answer) is None


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "https://example.com/schema"}])
def test_a_schema_that_cannot_be_used_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswerSchema):
        AnswerCheck(schema_rules(schema))


def doubling(levels: int) -> dict[str, Any]:
    """A small schema that applies its last part twice as often for each level."""
    parts: dict[str, Any] = {
        f"p{level}": {"allOf": [{"$ref": f"#/$defs/p{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$defs": parts | {f"p{levels}": {"type": "integer"}}, "$ref": "#/$defs/p0"}


def test_a_schema_whose_references_multiply_is_refused() -> None:
    assert problem(chat("1"), schema_rules(doubling(8))) is None
    with pytest.raises(InvalidAnswerSchema, match="its references multiply"):
        AnswerCheck(schema_rules(doubling(40)))


@pytest.mark.parametrize("reference", ["#", "#/$defs/a~1b", "#/$defs/c%20d", "#/allOf/0", "#name"])
def test_schemas_may_refer_to_their_parts(reference: str) -> None:
    parts = {"a/b": {"type": "object"}, "c d": {"type": "object"}, "e": {"$anchor": "name"}}
    schema = {"allOf": [{"type": "object"}], "$defs": parts, "properties": {"x": {"$ref": reference}}}
    assert problem(chat('{"x": {}}'), schema_rules(schema)) is None


# --- The request ------------------------------------------------------------------------------------------

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Is it spam?"}], "seed": 2**60}


def requested(given: object, url: str, schema: object = None, correction: Correction | None = None) -> Any:
    answer_format = None if schema is None else AnswerFormat(json.dumps(schema))
    return json.loads(checked_request(url, json.dumps(given).encode(), answer_format, correction).body)


def test_the_schema_is_sent_as_the_format() -> None:
    body = requested(REQUEST, CHAT, LABEL)
    described = {"name": "answer", "schema": LABEL, "strict": True}
    assert body == REQUEST | {"response_format": {"type": "json_schema", "json_schema": described}}
    body = requested({"model": "m", "input": "?"}, RESPONSES, LABEL)
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
    body = requested(REQUEST, CHAT, schema)
    assert "strict" not in body["response_format"]["json_schema"]


def test_the_format_of_a_line_is_kept() -> None:
    given = REQUEST | {"response_format": {"type": "json_object"}}
    assert requested(given, CHAT, LABEL) == given


def test_the_model_is_told_its_last_answer_and_what_was_wrong() -> None:
    correction = Correction("spam!", "The answer is not JSON.")
    body = requested(REQUEST, CHAT, None, correction)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == "spam!"
    assert "The answer is not JSON." in body["messages"][2]["content"]
    assert body | {"messages": REQUEST["messages"]} == REQUEST
    body = requested({"model": "m", "input": "Is it spam?"}, RESPONSES, None, correction)
    assert [message["content"] for message in body["input"]][:2] == ["Is it spam?", "spam!"]
    silent = requested(REQUEST, CHAT, None, Correction("", "The answer is empty."))
    assert [message["role"] for message in silent["messages"]] == ["user", "user"]


@pytest.mark.parametrize("given", [b"[]", b'{"model":"m","prompt":"x"}'])
def test_a_body_without_messages_stays_as_it_is(given: bytes) -> None:
    correction = Correction("spam!", "The answer is not JSON.")
    assert checked_request(CHAT, given, None, correction).body == given
    request = checked_request("/v1/completions", given, AnswerFormat("{}"), correction)
    assert (request.body, request.formatted) == (given, False)


def test_the_rest_of_a_body_is_sent_byte_for_byte() -> None:
    kept = b'"seed":123456789012345678901234567890,"top_p":0.10000000000000000001'
    message = b'{"role": "user", "content": "\\u0041 1e999"}'
    given = b'{"model":"m",%b,"messages":[%b],"x":[1e999]}' % (kept, message)
    correction = Correction("spam!", "The answer is not JSON.")
    sent = checked_request(CHAT, given, AnswerFormat("{}"), correction).body
    assert kept in sent
    assert b'"messages":[' + message + b',{"role":"assistant"' in sent
    assert b'"x":[1e999]' in sent


def test_fields_keep_the_order_of_the_schema() -> None:
    schema = '{"type":"object","properties":{"reasoning":{"type":"string"},"a":{"type":"string"}}}'
    assert schema.encode() in checked_request(CHAT, b'{"model":"m"}', AnswerFormat(schema), None).body
