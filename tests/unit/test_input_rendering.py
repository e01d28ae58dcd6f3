"""Rows become requests; templates are confined."""

import json
from typing import Any

import pytest

from batchline.files.inputs.errors import RowFault
from batchline.files.inputs.formats import Format, InputLimits
from batchline.files.inputs.rendering import InvalidRowTemplate, Renderer, RowTemplate, check_syntax

ROW = {"id": 7, "language": "German", "text": 'say "hi"\n{{ language }} \\', "none": None, "First Name": "Z"}


def line(
    row: dict[str, Any] | None = None,
    *,
    format: Format = Format.CSV,
    limits: InputLimits | None = None,
    **how: Any,
) -> dict[str, Any]:
    renderer = Renderer(RowTemplate(**{"model": "m", **how}), limits or InputLimits())
    found: dict[str, Any] = json.loads(renderer.line(ROW if row is None else row, 3, format))
    return found


def body(row: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    found: dict[str, Any] = line(row, **how)["body"]
    return found


def test_a_prompt_becomes_a_user_message() -> None:
    assert line(prompt="To {{language}}: {{ text | upper }}", system="You speak {{language}}.") == {
        "custom_id": "row-3",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m",
            "messages": [
                {"role": "system", "content": "You speak German."},
                {"role": "user", "content": 'To German: SAY "HI"\n{{ LANGUAGE }} \\'},
            ],
        },
    }


def test_values_are_data_and_never_templates() -> None:
    assert (
        body({"text": "{{ 1 + 1 }}{% for %}"}, prompt="{{ text }}")["messages"][0]["content"]
        == "{{ 1 + 1 }}{% for %}"
    )


def test_any_column_name_can_be_used_through_row() -> None:
    found = body(prompt="{{ row['First Name'] }}/{{ none }}/{{ id }}")
    assert found["messages"][0]["content"] == "Z//7", "a missing value is empty"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("/v1/embeddings", {"model": "m", "input": "German"}),
        ("/v1/moderations", {"model": "m", "input": "German"}),
        ("/v1/completions", {"model": "m", "prompt": "German"}),
        ("/v1/images/generations", {"model": "m", "prompt": "German"}),
        ("/v1/responses", {"model": "m", "input": "German"}),
    ],
)
def test_the_endpoint_decides_the_body(endpoint: str, expected: dict[str, str]) -> None:
    found = line(prompt="{{language}}", endpoint=endpoint)
    assert (found["url"], found["body"]) == (endpoint, expected)


def test_system_is_instructions_of_responses() -> None:
    assert body(prompt="a", system="b", endpoint="/v1/responses")["instructions"] == "b"


def test_params_are_fields_of_the_body() -> None:
    assert body(prompt="x", params={"temperature": 0, "stop": ["a"]})["stop"] == ["a"]


def test_bare_prompts_and_messages_are_recognized() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert body({"prompt": "hi", "label": 3}) == {"model": "m", "messages": messages}
    assert body({"messages": messages}) == {"model": "m", "messages": messages}
    assert body({"messages": messages}, system="s")["messages"][0] == {"role": "system", "content": "s"}
    assert body({"messages": messages}, endpoint="/v1/responses") == {"model": "m", "input": messages}
    assert body({"model": "own", "prompt": "hi"}, model=None)["model"] == "own"
    assert body({"model": "own", "prompt": "hi"}, model="m")["model"] == "m"
    assert body({"text": "hi"}, format=Format.TEXT) == {"model": "m", "messages": messages}


def test_an_id_column_names_the_lines() -> None:
    assert line(prompt="x", id_column="id")["custom_id"] == "7"
    assert line(prompt="x", id_column="language")["custom_id"] == "German"


def test_a_template_writes_the_whole_body() -> None:
    template = """{
      "messages": [{"role": "user", "content": "To {{ language }}: {{ text }}"}],
      "metadata": {"text": {{ text | tojson }}, "none": {{ none | tojson }}, "all": {{ [id] | tojson }}}
    }"""
    assert body(body=template) == {
        "model": "m",
        "messages": [{"role": "user", "content": f"To German: {ROW['text']}"}],
        "metadata": {"text": ROW["text"], "none": None, "all": [7]},
    }


def test_no_value_changes_the_structure_of_a_template() -> None:
    attack = {"text": '", "model": "expensive", "x": "'}
    assert body(attack, body='{"a": "{{ text }}"}') == {"model": "m", "a": attack["text"]}
    assert body(attack, body='{"a": {{ text | tojson }}}') == {"model": "m", "a": attack["text"]}
    with pytest.raises(RowFault, match=r"--template must write one JSON object; use {{ column \| tojson }}"):
        body(attack, body='{"a": {{ text }}}')


def test_macros_and_blocks_of_a_template_are_not_escaped_twice() -> None:
    macro = '{% macro m(x) %}{"c": {{ x | tojson }}}{% endmacro %}{% set b %}[{{ id }}]{% endset %}'
    assert body(body=macro + '{"a": {{ m(text) }}, "b": {{ b }}}') == {
        "model": "m",
        "a": {"c": ROW["text"]},
        "b": [7],
    }


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"prompt": "{{ langage }}"},
            "--prompt uses 'langage', which is not a column; found id, language, text",
        ),
        ({"prompt": "{{ text.nothing }}"}, "--prompt fails: 'str object' has no attribute 'nothing'"),
        ({"system": "{{ x }}", "prompt": "a"}, "--system uses 'x', which is not a column"),
        ({"body": '{"a": {{ x | tojson }}}'}, "--template uses 'x', which is not a column"),
        ({"body": '{"a": 1}', "model": None}, "the body that --template writes has no model"),
        ({"body": "[1]"}, "--template must write one JSON object"),
        ({"prompt": "{{ text.__class__ }}"}, "--prompt does something that templates may not do"),
        ({"prompt": "{{ ''.__class__.__mro__[1].__subclasses__() }}"}, "templates may not do"),
        ({"prompt": "{{ row.update(a=1) }}"}, "templates may not do"),
        ({"prompt": "{{ '{0.__class__}'.format(text) }}"}, "templates may not do"),
        ({"prompt": "{{ range(10 ** 9) | list }}"}, "--prompt fails: Range too big"),
        ({"prompt": "{{ 1 // 0 }}"}, "--prompt fails: integer division or modulo by zero"),
        ({"prompt": "{% include '/etc/passwd' %}"}, "--prompt fails: no loader"),
        ({"prompt": "{{ lipsum() }}"}, "uses 'lipsum', which is not a column"),
        ({}, "found id, language, text, none, First Name, but no text in a column prompt; give --prompt"),
        ({"prompt": "x", "id_column": "uid"}, "there is no column 'uid' for --id-column; found id, language"),
        ({"prompt": "x", "id_column": "none"}, "--id-column none must be text or a whole number, not None"),
        ({"prompt": "x", "model": None}, "no model: give --model"),
    ],
)
def test_a_fault_says_what_was_found_and_which_flag_helps(how: dict[str, Any], message: str) -> None:
    with pytest.raises(RowFault) as fault:
        line(**how)
    assert message in str(fault.value)


def test_bad_messages_are_refused() -> None:
    with pytest.raises(RowFault, match="messages must be a list of objects"):
        line({"messages": ["hi"]})
    with pytest.raises(RowFault, match="messages cannot be sent to /v1/embeddings"):
        line({"messages": [{"role": "user"}]}, endpoint="/v1/embeddings")


def test_a_wrong_delimiter_is_suggested() -> None:
    with pytest.raises(
        RowFault, match="uses 'text', which is not a column; found id;text; all of the header is one"
    ):
        line({"id;text": "1;hi"}, prompt="{{ text }}")
    with pytest.raises(RowFault, match=r"give --delimiter '\\t'"):
        line({"id\ttext": "1;hi"}, id_column="id", prompt="x")


def test_what_one_row_may_write_is_limited() -> None:
    loops = "{% for a in range(9999) %}{% for b in range(9999) %}xxxxxxxx{% endfor %}{% endfor %}"
    with pytest.raises(RowFault, match="--prompt writes more than 100,000 characters"):
        line(prompt=loops, limits=InputLimits(render_bytes=100_000))


def test_syntax_is_checked_without_compiling() -> None:
    check_syntax("{{ 'x' * 10 ** 12 }}", "--prompt")
    with pytest.raises(InvalidRowTemplate, match=r"--prompt: line 2: unexpected '}'"):
        check_syntax("a\n{{ b } }}", "--prompt")


def test_constants_of_a_template_are_escaped_for_json_and_not_for_html() -> None:
    found = body(body='{"content": "{{ "Q & A: <b>" }} {{ "a\\\\b" }} {{ language }}"}')
    assert found["content"] == "Q & A: <b> a\\b German"


@pytest.mark.parametrize(
    "use", ["x | safe", "x | e | safe", "x | urlize", "(x | tojson) ~ x", "(x | safe) ~ x"]
)
def test_no_filter_lets_a_value_change_the_structure(use: str) -> None:
    for value in ('", "model": "evil', "1], [2", "\\"):
        found = body({"x": value}, body='{"model": "good", "a": ["{{ ' + use + ' }}"]}')
        assert (found["model"], len(found["a"]), sorted(found)) == ("good", 1, ["a", "model"])


def test_a_block_of_a_template_can_be_a_json_value() -> None:
    found = body(body='{% set y %}{{ language }}{% endset %}{"a": {{ y | tojson }}, "b": "{{ y }}"}')
    assert (found["a"], found["b"]) == ("German", "German")


@pytest.mark.parametrize("use", ["language.lower", "range", "dict"])
@pytest.mark.parametrize("option", ["prompt", "body"])
def test_a_function_is_not_sent_as_text(use: str, option: str) -> None:
    how: dict[str, Any] = {}
    how[option] = "{{ " + use + " }}" if option == "prompt" else '{"a": "{{ ' + use + ' }}"}'
    with pytest.raises(RowFault, match="is a function and not a value"):
        line(**how)


def test_a_column_called_row_is_not_taken_for_the_whole_row() -> None:
    row = {"row": "r", "text": "t"}
    with pytest.raises(RowFault, match=r'for the column of this name, write row\["row"\]'):
        body(row, prompt="{{ row }}")
    assert body(row, prompt="{{ row['row'] }}{{ text }}")["messages"][0]["content"] == "rt"
    range_column = body({"range": "5 km"}, prompt="{{ range }}")
    assert range_column["messages"][0]["content"] == "5 km", "a column wins over a function"


def test_half_of_a_pair_of_characters_is_a_fault_of_the_row() -> None:
    with pytest.raises(RowFault, match="not valid in UTF-8"):
        body(prompt='{{ language }}{{ "\\ud83d" }}')
