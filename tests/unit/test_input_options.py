"""Options of the command line that say how rows become requests."""

from pathlib import Path
from typing import Any

import pytest

from batchline.cli.display.console import CommandError
from batchline.cli.inputs import RowOptions, default_output, input_options, opened_inputs
from batchline.files.inputs.input_set import InputOptions
from batchline.files.inputs.rendering import RowTemplate


def options(**given: Any) -> InputOptions:
    return input_options(RowOptions(**given))


def test_params_are_json_and_a_word_is_text() -> None:
    found = options(param=["temperature=0", 'stop=["a=b"]', "effort=low", "on=true", 'x="y"']).template
    assert found == RowTemplate(
        params={"temperature": 0, "stop": ["a=b"], "effort": "low", "on": True, "x": "y"}
    )


def test_without_options_for_rows_there_is_no_template() -> None:
    assert options().template is None
    assert options(endpoint="/v1/chat/completions").template is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"param": ["temperature"]}, "--param 'temperature': give NAME=VALUE"),
        ({"param": ["temperature=0,5"]}, "the value is not JSON; text needs double quotes"),
        ({"param": ["model=x"]}, "--param model: give --model instead"),
        ({"prompt": "{{ a"}, "--prompt: line 1: unexpected end of template"),
        ({"endpoint": "/v1/chat"}, "--endpoint /v1/chat: give one of /v1/chat/completions, /v1/completions"),
        ({"endpoint": "/v1/embeddings", "system": "x"}, "/v1/embeddings takes no system message"),
        ({"delimiter": ";;"}, "--delimiter ';;': give one character"),
        ({"template": Path(__file__), "prompt": "x"}, "--prompt and --template exclude each other"),
        (
            {"prompt": "To {language}: {text}"},
            "all rows would send the same; write {{language}} instead of {language}",
        ),
        ({"prompt": "Hello", "system": "Be short."}, "--prompt uses no column"),
        ({"template": Path("/no/such/file")}, "--template /no/such/file cannot be read: No such file"),
    ],
)
def test_a_wrong_option_says_what_to_give(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError) as error:
        options(**given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "given", "message"),
    [
        ("x.csv", "id,text\n1,a\n", {}, "found rows with the columns id, text; give --model and a prompt"),
        ("x.csv", "text\na\n", {"prompt": "{{text}}"}, "found rows with the columns text; give --model"),
        ("x.csv", "id, text\n1,a\n", {}, "found rows with the columns id, ' text'; give"),
        ("x.jsonl", '[{"text": 1}]\n', {"prompt": "{{text}}", "model": "m"}, "jq -c '.[]'"),
        ("x.csv", "id,text\n1,Hello\n", {}, "for example --prompt 'Translate to German: {{text}}'"),
        ("x.csv", "id,a b\n1,Hello\n", {}, """--prompt 'Translate to German: {{row["a b"]}}'"""),
        ("x.csv", "prompt\na\n", {}, "found rows with the columns prompt; give --model"),
        ("x.txt", "hello\n", {}, "found rows with the columns text; give --model"),
        ("x.jsonl", '{"q": 1}\n', {}, "found rows with the columns q; give --model and a prompt"),
        ("x.csv", "id;text\n1;a\n", {}, "all of the header is one column: give --delimiter ';'"),
        (
            "x.jsonl",
            '{"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {}}\n',
            {"model": "m"},
            "its lines are complete requests already; leave out --model",
        ),
    ],
)
def test_options_that_do_not_fit_the_input_are_reported_before_anything_starts(
    tmp_path: Path, name: str, content: str, given: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(CommandError) as error, opened_inputs([str(path)], options(**given), tmp_path):
        pass
    assert message in str(error.value)


def test_the_output_is_beside_the_input(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    for name in ("x.csv.gz", "a.b.jsonl", "data.v2"):
        (tmp_path / name).touch()
    beside = {
        "x.csv.gz": "x.output.jsonl",
        "a.b.jsonl": "a.b.output.jsonl",
        "data.v2": "data.output.jsonl",
        "rows": "rows.output.jsonl",
    }
    for given, expected in beside.items():
        assert default_output(str(tmp_path / given)) == tmp_path / expected
    assert default_output("in/*.csv") == Path("inputs.output.jsonl")
    assert default_output("s3://bucket/in/*.csv") == Path("inputs.output.jsonl")
    assert default_output("-") == Path("stdin.output.jsonl")
    assert default_output("https://a:b@host/p/x.csv?k=1") == Path("x.output.jsonl")
    assert default_output("s3://bucket/in/") == Path("in.output.jsonl")


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "{{ text }}"},
        {"prompt": "{% for each in row %}{{ each }}{% endfor %}"},
        {"prompt": "Answer.", "system": "About {{ text }}"},
        {"system": "Be short."},
    ],
)
def test_a_prompt_that_uses_a_column_is_accepted(given: dict[str, Any]) -> None:
    assert options(**given).template is not None


def test_a_prompt_without_a_model_is_told_only_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text\na\n")
    given = options(prompt="{{ text }}")
    with pytest.raises(CommandError) as error, opened_inputs([str(path)], given, tmp_path):
        pass
    assert "prompt" not in str(error.value)
