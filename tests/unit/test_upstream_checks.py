"""Upstreams that contradict each other are refused at the start, with the line of the mistake."""

from pathlib import Path

import pytest

from batchline.config import SettingsError, load
from batchline.config.settings import ServerSettings

TWO = """
[[upstreams]]
name = "a"
base_url = "http://a/v1"
models = ["m"]

[[upstreams]]
name = "b"
base_url = "http://b/v1"
models = ["m"]
"""


def loaded(folder: Path, text: str) -> ServerSettings:
    path = folder / "batchline.toml"
    path.write_text(text)
    return load(path, {}).server


@pytest.mark.parametrize(
    ("text", "line", "key", "why"),
    [
        pytest.param(TWO.replace('"b"', '"A"'), 8, "name", "the same name", id="one name"),
        pytest.param(TWO.replace("//b/v1", "//A/v1/"), 9, "base_url", "at this URL", id="one URL"),
        pytest.param(
            TWO.replace('models = ["m"]', 'models = ["m"]\nweight = 0'),
            12,
            "weight",
            "weight 0",
            id="weights",
        ),
        pytest.param(TWO + 'aliases = { n = "x" }', 11, "aliases", "does not serve 'n'", id="alias"),
        pytest.param(
            TWO.replace('"m"]', '"*"]') + 'aliases = { n = "" }', 11, "aliases", "table of texts", id="empty"
        ),
        pytest.param(
            TWO + "provider = 'openai-background'", 11, "provider", "the only upstream", id="provider"
        ),
        pytest.param(TWO + "escalate_before = '1h'\nweight = 2", 12, "weight", "has no weight", id="both"),
        pytest.param(
            TWO.replace('["m"]\n\n', '["n"]\n\n') + "escalate_before = '1h'",
            11,
            "escalate_before",
            "serves model 'm'",
            id="escalation alone",
        ),
        pytest.param(TWO + "health_every = '1s'", 11, "health_every", "set health", id="no path"),
        pytest.param(TWO + "health = 'health'", 11, "health", "begins with /", id="path"),
        pytest.param(TWO + "weight = -1", 11, "weight", "from 0", id="negative weight"),
        pytest.param(
            TWO.replace('models = ["m"]\n\n', "\n").replace('"m"]', '"*"]'),
            2,
            "models",
            "another upstream serves any model",
            id="any model by accident",
        ),
    ],
)
def test_a_contradiction_is_reported_with_file_line_and_key(
    tmp_path: Path, text: str, line: int, key: str, why: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, text)
    message = str(refused.value)
    assert f"batchline.toml, line {line}: upstreams[" in message
    assert f"].{key}: " in message
    assert why in message


def test_several_upstreams_serve_a_model_and_one_may_be_for_escalations(tmp_path: Path) -> None:
    more = '[[upstreams]]\nname = "c"\nbase_url = "http://c/v1"\nmodels = ["m"]\nescalate_before = "2h"\n'
    server = loaded(tmp_path, TWO + "weight = 0\n" + more)
    assert [(each.name, each.weight) for each in server.upstreams_for("m")] == [("a", 1), ("b", 0)]
    assert [each.name for each in server.escalations_for("m")] == ["c"]
    assert server.upstreams_for("n") == server.escalations_for("n") == ()
    first = server.upstream_for("m")
    assert first is not None
    assert first.name == "a"


def test_any_model_means_those_that_no_upstream_names(tmp_path: Path) -> None:
    any_model = '[[upstreams]]\nname = "c"\nbase_url = "http://c/v1"\nmodels = ["*"]\n'
    server = loaded(tmp_path, TWO + any_model + any_model.replace("c", "d") + 'escalate_before = "2h"\n')
    assert [each.name for each in server.upstreams_for("other")] == ["c"]
    assert [each.name for each in server.escalations_for("other")] == ["d"]
    assert server.escalations_for("m") == ()
