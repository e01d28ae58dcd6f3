"""batchline.toml: what it says, what the environment overrides, and errors that name the line."""

from pathlib import Path

import pytest

from batchline.config import SettingsError, load, missing_keys
from batchline.config.settings import LimitSettings, ServerSettings, UpstreamSettings

WHOLE = """
[server]
max_file_bytes = "2GB"
max_lines = 1_000_000
windows = ["24h", "90m", "7d"]
objects = "s3://bucket/prefix"
input_retention = "never"
output_retention = "7d"
results_retention = 3600
allow_private_webhooks = true

[[upstreams]]   # the big one
name = "gpu"
base_url = "http://10.0.0.5:8000/v1"
api_key_env = "GPU_KEY"
models = ["large", "org/huge"]
concurrency = 8
timeout = 120.5
max_attempts = 3

[[upstreams]]
name = "any"
base_url = "https://api.example.com/v1"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "batchline.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load(written(folder, text), environ)
    return str(refused.value)


def test_everything_that_is_written_is_read(tmp_path: Path) -> None:
    assert load(written(tmp_path, WHOLE), {}) == ServerSettings(
        upstreams=(
            UpstreamSettings("gpu", "http://10.0.0.5:8000/v1", "GPU_KEY", ("large", "org/huge"), 8, 120.5, 3),
            UpstreamSettings("any", "https://api.example.com/v1"),
        ),
        max_file_bytes=2 * 10**9,
        max_lines=1_000_000,
        windows=("24h", "90m", "7d"),
        objects="s3://bucket/prefix",
        input_retention=None,
        output_retention=7 * 86_400.0,
        results_retention=3600.0,
        allow_private_webhooks=True,
    )


def test_without_a_file_there_are_the_defaults(tmp_path: Path) -> None:
    assert load(None, {"HOME": "/root"}) == ServerSettings()
    assert load(written(tmp_path, ""), {}) == ServerSettings()


def test_a_model_goes_to_the_upstream_that_names_it_and_else_to_the_one_for_any(tmp_path: Path) -> None:
    settings = load(written(tmp_path, WHOLE), {})
    owners = [settings.upstream_for(model) for model in ("large", "org/huge", "small")]
    assert [owner.name for owner in owners if owner] == ["gpu", "gpu", "any"]


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environ = {
        "BATCHLINE_SERVER_MAX_LINES": "5",
        "BATCHLINE_SERVER_WINDOWS": "1h, 2h",
        "BATCHLINE_SERVER_INPUT_RETENTION": "2d",
        "BATCHLINE_SERVER_ALLOW_PRIVATE_WEBHOOKS": "false",
        "BATCHLINE_UPSTREAM_GPU_BASE_URL": "http://elsewhere/v1",
        "BATCHLINE_UPSTREAM_GPU_CONCURRENCY": "99",
        "BATCHLINE_UPSTREAM_ANY_MODELS": "a,b",
        # Options of the command line have variables too.
        "BATCHLINE_UPSTREAM": "http://127.0.0.1:1",
        "BATCHLINE_DATABASE_URL": "postgresql://x",
    }
    settings = load(written(tmp_path, WHOLE), environ)
    assert (settings.max_lines, settings.windows) == (5, ("1h", "2h"))
    assert (settings.input_retention, settings.allow_private_webhooks) == (2 * 86_400.0, False)
    gpu, other = settings.upstreams
    assert (gpu.base_url, gpu.concurrency, other.models) == ("http://elsewhere/v1", 99, ("a", "b"))


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATCHLINE_SERVER_MAX_LINE", "5"),
        ("BATCHLINE_SERVER_MAX_LINES", "many"),
        ("BATCHLINE_SERVER_ALLOW_PRIVATE_WEBHOOKS", "perhaps"),
        ("BATCHLINE_UPSTREAM_GPU_COLOUR", "red"),
        ("BATCHLINE_UPSTREAM_CPU_BASE_URL", "http://x"),
        ("BATCHLINE_UPSTREAM_GPU_BASE_URL", "file:///etc/passwd"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(tmp_path: Path, variable: str, value: str) -> None:
    assert variable in refusal(tmp_path, WHOLE, **{variable: value})


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("[server]\nmax_lines = 0", 2, "server.max_lines"),
        ("[server]\n\nmax_lines = true", 3, "server.max_lines"),
        ("[server]\nmax_line = 1", 2, "server.max_line"),
        ("[server]\nmax_file_bytes = '2 lots'", 2, "server.max_file_bytes"),
        ("[server]\nwindows = []", 2, "server.windows"),
        ("[server]\nwindows = ['1 day']", 2, "server.windows"),
        ("[server]\noutput_retention = -1", 2, "server.output_retention"),
        ("[server]\noutput_retention = nan", 2, "server.output_retention"),
        ("# first\n[sever]\n", 2, "sever"),
        ("port = 80", 1, "port"),
        ("server = 3", 1, "server"),
        ("upstreams = 3", 1, "upstreams"),
        ("[upstreams]\nname = 'a'", 1, "upstreams"),
        ("[[upstreams]]\nname = 'a'\n", 1, "upstreams[0].base_url"),
        ("[[upstreams]]\nbase_url = 'http://a'\n", 1, "upstreams[0].name"),
        ("[[upstreams]]\nname = 'a'\nbase_url = '10.0.0.1:80'", 3, "upstreams[0].base_url"),
        ("[[upstreams]]\nname = 'a'\nbase_url = 'http://u:p@h/'", 3, "upstreams[0].base_url"),
        ("[[upstreams]]\nname = 'a b'\nbase_url = 'http://h/'", 2, "upstreams[0].name"),
        (
            "[[upstreams]]\nname = 'a'\nbase_url = 'http://h/'\napi_key_env = 'sk-123'",
            4,
            "upstreams[0].api_key_env",
        ),
        ("[[upstreams]]\nname = 'a'\nbase_url = 'http://h/'\nmodels = ['']", 4, "upstreams[0].models"),
        (
            WHOLE + "\n[[upstreams]]\nname = 'gpu'\nbase_url = 'http://h'\nmodels = ['x']",
            26,
            "upstreams[2].name",
        ),
        (WHOLE + "models = ['large']\n", 24, "upstreams[1].models"),
        (WHOLE + "\n[[upstreams]]\nname = 'c'\nbase_url = 'http://h'\n", 25, "upstreams[2].models"),
        (WHOLE.replace("concurrency = 8", "concurrency = 0"), 17, "upstreams[0].concurrency"),
        (WHOLE.replace("timeout = 120.5", 'timeout = "soon"'), 18, "upstreams[0].timeout"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_key(tmp_path: Path, text: str, line: int, key: str) -> None:
    reported = refusal(tmp_path, text)
    assert reported.startswith(f"{tmp_path / 'batchline.toml'}, line {line}: {key}: "), reported


def test_what_is_not_toml_is_told_with_its_line(tmp_path: Path) -> None:
    assert "line 2" in refusal(tmp_path, "[server]\nmax_lines = = 3\n")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load(tmp_path / "missing.toml", {})


def test_a_variable_that_should_hold_a_key_and_does_not_is_found_at_the_start(tmp_path: Path) -> None:
    settings = load(written(tmp_path, WHOLE), {})
    assert missing_keys(settings, {"GPU_KEY": "secret"}) == []
    (missing,) = missing_keys(settings, {"GPU_KEY": " "})
    assert "GPU_KEY" in missing


def test_limits_are_read_and_overridden_and_slips_are_found(tmp_path: Path) -> None:
    text = "[server]\noperation_window = '2d'\n[limits]\nuser_pending_parents = 5\ncooldown_seconds = 0\n"
    read = load(written(tmp_path, text), {"BATCHLINE_LIMITS_REQUESTS_PER_MINUTE": "7"})
    assert read.limits == LimitSettings(user_pending_parents=5, cooldown_seconds=0, requests_per_minute=7)
    assert read.operation_window == "2d"
    assert "line 2" in refusal(tmp_path, "[limits]\nuser_pending_parent = 5\n")
    assert "line 2" in refusal(tmp_path, "[limits]\nuser_pending_parents = 0\n")
    assert "no such setting" in refusal(tmp_path, "", BATCHLINE_LIMITS_COOLDOWN="1")
