"""Stages of batchline.toml: what is wrong with one is refused at the start, with its line."""

from pathlib import Path

import pytest

from batchline.config import SettingsError, load
from batchline.operations.codec import TypeMismatch
from batchline.operations.declared_stages import declared_stages
from batchline.operations.http_stage import HttpStage

_UPSTREAMS = """
# One for a stage, and one that no stage can use.
[[upstreams]]
name = "sim"
base_url = "http://127.0.0.1:9/v1"
models = ["small"]
timeout = 30
max_attempts = 3
concurrency = 7

[[upstreams]]
name = "later"
base_url = "http://127.0.0.1:10/v1"
provider = "openai-background"
models = ["slow"]
"""
# Its header is in line 17.
_ASK = """
[stages.ask]
model = "small"
prompt = "{{ text }}"
"""


def stages(folder: Path, text: str) -> tuple[HttpStage, ...]:
    path = folder / "batchline.toml"
    path.write_text(_UPSTREAMS + text)
    return declared_stages(load(path, {}).server)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(SettingsError) as refused:
        stages(folder, text)
    return str(refused.value).removeprefix(f"{folder}/batchline.toml, ")


def test_what_a_stage_does_not_set_is_as_of_its_upstream(tmp_path: Path) -> None:
    (stage,) = stages(tmp_path, _ASK)
    options = stage.options
    assert (stage.name, stage.url, stage.output) == ("ask", "python:ask", "ask")
    assert (options.max_attempts, options.timeout, options.concurrency, options.emits) == (3, 30.0, 7, ())
    assert stage.shares_upstream
    assert stage.run_settings().upstream == "http://127.0.0.1:9/v1"


def test_what_a_stage_sets_is_its_own(tmp_path: Path) -> None:
    more = 'max_attempts = 9\ntimeout = "1m"\nconcurrency = 2\nemits = ["b", "b"]\noutput = "said"\n'
    (stage,) = stages(tmp_path, _ASK + more)
    options = stage.options
    assert (options.max_attempts, options.timeout, options.concurrency, options.emits) == (9, 60.0, 2, ("b",))
    assert (stage.output, stage.shares_upstream) == ("said", False)
    assert (stage.run_settings().max_attempts, stage.run_settings().timeout) == (9, 60.0)


def test_a_prompt_may_have_several_lines(tmp_path: Path) -> None:
    text = '[stages.ask]\nmodel = "small"\nprompt = """\nSummarize:\n{{ text }}\n"""\n'
    (stage,) = stages(tmp_path, text)
    assert b'"Summarize:\\na\\n"' in stage.request(b'{"text": "a"}')


def test_an_endpoint_has_its_own_request(tmp_path: Path) -> None:
    (stage,) = stages(tmp_path, _ASK + 'endpoint = "/v1/embeddings"\nparams = { dimensions = 3 }')
    assert stage.request(b'{"text": "a"}') == b'{"model":"small","input":"a","dimensions":3}'


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b'{"txt": "a"}', "prompt uses 'text', which is not a column; found txt"),
        (b'["a"]', "Expected `object`, got `array`"),
    ],
)
def test_an_item_that_does_not_match_the_prompt_is_refused(tmp_path: Path, item: bytes, reason: str) -> None:
    (stage,) = stages(tmp_path, _ASK)
    with pytest.raises(TypeMismatch) as refused:
        stage.request(item)
    assert str(refused.value) == reason


def test_a_stage_is_not_called(tmp_path: Path) -> None:
    (stage,) = stages(tmp_path, _ASK)
    with pytest.raises(Exception, match="submit items to it"):
        stage.function({})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_ASK + "temperature = 0", "line 20: stages.ask.temperature: unknown key; known are "),
        ('\n[stages.ask]\nprompt = "{{ a }}"', "line 17: stages.ask.model: is missing"),
        ('\n[stages.ask]\nmodel = "small"', "line 17: stages.ask.prompt: is missing"),
        ("\n[stages]\nask = 1", "line 18: stages.ask: must be a table"),
        (_ASK.replace("small", "none"), "line 18: stages.ask.model: no upstream serves 'none'; add it to "),
        (_ASK.replace("small", "slow"), "line 18: stages.ask.model: upstream later is an asynchronous "),
        (_ASK.replace("{{ text }}", "{{ text"), "line 19: stages.ask.prompt: the template: line 1: "),
        (_ASK.replace("{{ text }}", "{{ a | no }}"), "line 19: stages.ask.prompt: prompt: line 1: No filter"),
        (_ASK.replace("{{ text }}", "{text}"), "line 19: stages.ask.prompt: prompt uses no column, so that "),
        (_ASK + 'system = "{% if %}"', "line 20: stages.ask.system: the template: line 1: "),
        (_ASK + 'endpoint = "/v1/images"', "line 20: stages.ask.endpoint: must be one of /v1/"),
        (
            _ASK + 'endpoint = "/v1/embeddings"\nsystem = "a"',
            "line 21: stages.ask.system: /v1/embeddings takes no system message; leave it out",
        ),
        (_ASK + "params = { model = 1 }", "line 20: stages.ask.params: 'model' cannot be given here; give m"),
        (_ASK + "params = { stream = true }", "line 20: stages.ask.params: 'stream' cannot be given here; l"),
        (_ASK + "[stages.ask.params]\ninput = 1", "line 20: stages.ask.params: 'input' cannot be given here"),
        (_ASK + 'output = "a b"', "line 20: stages.ask.output: 'a b' cannot be a field that templates can "),
        (_ASK + 'output = "row"', "line 20: stages.ask.output: 'row' cannot be a field that templates can "),
        (
            _ASK.replace("ask", "to-do"),
            "line 17: stages.to-do.output: 'to-do' is the name of the stage, and ",
        ),
        (_ASK.replace("ask", "Ask"), "line 17: stages.Ask: 'Ask' cannot be the name of a stage: it must "),
        (_ASK + 'emits = "b"', "line 20: stages.ask.emits: must be a list of names of stages"),
        (_ASK + "max_attempts = 0", "line 20: stages.ask.max_attempts: must be a whole number from 1 to 100"),
        (_ASK + "[stages.b]\nmodel = 1", "line 21: stages.b.model: must be a text that is not empty"),
    ],
)
def test_a_mistake_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)
