"""batchline.toml, the environment and flags: which one wins, and errors that name the place."""

import re
from pathlib import Path

import pytest

from batchline.config import SettingsError, load, missing_keys
from batchline.config.settings import (
    LimitSettings,
    PriceSettings,
    ServerSettings,
    Settings,
    SpendingSettings,
    UpstreamSettings,
    WorkerSettings,
)

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


def test_every_key_of_the_file_is_read(tmp_path: Path) -> None:
    assert load(written(tmp_path, WHOLE), {}).server == ServerSettings(
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


def test_defaults_apply_without_a_file(tmp_path: Path) -> None:
    assert load(None, {"HOME": "/root"}) == Settings()
    assert load(written(tmp_path, ""), {}) == Settings()


def test_a_model_goes_to_the_upstream_that_names_it_and_else_to_the_one_for_any(tmp_path: Path) -> None:
    settings = load(written(tmp_path, WHOLE), {}).server
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
    settings = load(written(tmp_path, WHOLE), environ).server
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
def test_an_error_names_the_variable(tmp_path: Path, variable: str, value: str) -> None:
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
        (WHOLE + "models = ['large', 'large']\n", 24, "upstreams[1].models"),
        (WHOLE + "\n[[upstreams]]\nname = 'c'\nbase_url = 'http://h'\n", 21, "upstreams[1].models"),
        (WHOLE.replace("concurrency = 8", "concurrency = 0"), 17, "upstreams[0].concurrency"),
        (WHOLE.replace("timeout = 120.5", 'timeout = "soon"'), 18, "upstreams[0].timeout"),
    ],
)
def test_a_mistake_is_reported_with_file_line_and_key(tmp_path: Path, text: str, line: int, key: str) -> None:
    reported = refusal(tmp_path, text)
    assert reported.startswith(f"{tmp_path / 'batchline.toml'}, line {line}: {key}: "), reported


def test_a_mistake_in_toml_is_reported_with_its_line(tmp_path: Path) -> None:
    assert "line 2" in refusal(tmp_path, "[server]\nmax_lines = = 3\n")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file"):
        load(tmp_path / "missing.toml", {})


def test_a_missing_api_key_is_found_at_the_start(tmp_path: Path) -> None:
    settings = load(written(tmp_path, WHOLE), {}).server
    assert missing_keys(settings, {"GPU_KEY": "secret"}) == []
    (missing,) = missing_keys(settings, {"GPU_KEY": " "})
    assert "GPU_KEY" in missing


def test_limits_are_read_and_overridden_and_mistakes_are_found(tmp_path: Path) -> None:
    text = "[server]\noperation_window = '2d'\n[limits]\nuser_pending_parents = 5\ncooldown_seconds = 0\n"
    read = load(written(tmp_path, text), {"BATCHLINE_LIMITS_REQUESTS_PER_MINUTE": "7"}).server
    assert read.limits == LimitSettings(user_pending_parents=5, cooldown_seconds=0, requests_per_minute=7)
    assert read.operation_window == "2d"
    assert "line 2" in refusal(tmp_path, "[limits]\nuser_pending_parent = 5\n")
    assert "line 2" in refusal(tmp_path, "[limits]\nuser_pending_parents = 0\n")
    assert "no such setting" in refusal(tmp_path, "", BATCHLINE_LIMITS_COOLDOWN="1")


def test_flags_override_the_environment_and_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[worker]\nlease = '20s'\npoll_max = 60\nconcurrency = 2\n[server]\nport = 81\n")
    environ = {
        "BATCHLINE_WORKER_LEASE": "30s",
        "BATCHLINE_WORKER_POLL_MAX": "2m",
        "BATCHLINE_SERVER_PORT": "82",
    }
    read = load(path, environ, {"lease": 40.0, "port": None, "database": "postgresql://x"})
    assert read.worker == WorkerSettings(lease=40.0, poll_max=120.0, concurrency=2)
    assert (read.server.port, read.database) == (82, "postgresql://x")
    assert read.origins == {
        "worker.lease": "--lease",
        "worker.poll_max": "BATCHLINE_WORKER_POLL_MAX",
        "worker.concurrency": f"{path}, line 4",
        "server.port": "BATCHLINE_SERVER_PORT",
    }


def test_a_worker_has_the_concurrency_of_the_upstream_for_any_model_unless_it_has_its_own(
    tmp_path: Path,
) -> None:
    text = "[[upstreams]]\nname = 'a'\nbase_url = 'http://h'\nconcurrency = 7\n"
    assert load(written(tmp_path, text), {}).worker.concurrency == 7
    assert load(written(tmp_path, text), {"BATCHLINE_WORKER_CONCURRENCY": "9"}).worker.concurrency == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[server]\nmax_line = 1", "unknown key; did you mean max_lines?"),
        ("[worker]\ndrain = true", "unknown key; known are body_memory, buffer_max, "),
        ("[workers]\nlease = 3", "unknown table; did you mean worker?"),
        (
            "[worker]\nlease = 0.5",
            'must be a time of at least 1 s and at most 300 s, such as "90m" or "7d", or a number of seconds',
        ),
        ("[worker]\nlease = '6m'", "must be a time of at least 1 s and at most 300 s"),
        ("[worker]\nbody_memory = 15", 'must be a size of at least "16MiB"'),
        ("[limits]\ncooldown_seconds = -1", "must be a whole number from 0 to 31,536,000"),
        ("[server]\npublic_openapi = 'yes'", "must be true or false"),
    ],
)
def test_an_error_says_which_values_are_valid(tmp_path: Path, text: str, why: str) -> None:
    assert refusal(tmp_path, text).split(": ", 2)[2].startswith(why)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("BATCHLINE_SERVER_MAX_LINE", "BATCHLINE_SERVER_MAX_LINES"),
        ("BATCHLINE_UPSTREAM_GPU_TIMEOUTS", "BATCHLINE_UPSTREAM_GPU_TIMEOUT"),
        ("BATCHLINE_LEASE", "BATCHLINE_WORKER_LEASE"),
        ("BATCHLINE_DATABASE_URI", "BATCHLINE_DATABASE_URL"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, variable: str, meant: str
) -> None:
    assert refusal(tmp_path, WHOLE, **{variable: "1"}) == (
        f"environment variable {variable}: there is no such setting; did you mean {meant}?"
    )


def test_a_short_variable_overrides_the_derived_one() -> None:
    environ = {"BATCHLINE_SERVER_OBJECTS": "s3://a", "BATCHLINE_WORKER_BODY_MEMORY": "1GiB"}
    read = load(None, environ)
    assert (read.server.objects, read.worker.body_memory) == ("s3://a", 2**30)
    read = load(None, environ | {"BATCHLINE_OBJECTS": "s3://b", "BATCHLINE_BODY_MEMORY": "64"})
    assert (read.server.objects, read.worker.body_memory) == ("s3://b", 64 * 2**20)


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    text = WHOLE.replace("GPU_KEY", "BATCHLINE_UPSTREAM_KEY")
    environ = {
        "BATCHLINE_UPSTREAM_KEY": "named by api_key_env",
        "BATCHLINE_URL": "http://127.0.0.1:8080",
        "BATCHLINE_TEST_DATABASE_URL": "postgresql://x",
        # Kubernetes sets these for a Service named batchline-server.
        "BATCHLINE_SERVER_SERVICE_HOST": "10.0.0.1",
        "BATCHLINE_SERVER_SERVICE_PORT_HTTP": "80",
        "BATCHLINE_SERVER_PORT": "tcp://10.0.0.1:80",
        "BATCHLINE_SERVER_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load(written(tmp_path, text), environ).server.port == 8080


# Prices


def test_prices_and_what_is_reserved(tmp_path: Path) -> None:
    text = """
        [[prices]]
        model = "gpt-4o"
        input = 2.5
        output = 10
        cached_input = 1.25

        [[prices]]
        model = "*"
        input = 0.1

        [spending]
        output_tokens = 512
        """
    settings = load(written(tmp_path, text), {}).server
    assert settings.prices == (PriceSettings("gpt-4o", 2.5, 10.0, 1.25), PriceSettings("*", 0.1))
    assert settings.spending == SpendingSettings(output_tokens=512, bytes_per_token=3.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[[prices]]\nmodel = "m"\n', "prices[0].input: is missing"),
        ('[[prices]]\nmodel = "m"\ninput = "2"\n', "line 3: prices[0].input: must be a number from 0 to"),
        ('[[prices]]\nmodel = "m"\ninput = true\n', "line 3: prices[0].input: must be a number from 0 to"),
        ('[[prices]]\nmodel = "m"\ninput = nan\n', "line 3: prices[0].input: must be a number from 0 to"),
        (
            '[[prices]]\nmodel = "m"\ninput = 1\n[[prices]]\nmodel = "m"\ninput = 2\n',
            "line 5: prices[1].model: 'm' has a price already",
        ),
        ('[prices]\nmodel = "m"\n', "prices: write it as [[prices]], once for each"),
    ],
)
def test_a_mistake_in_a_price_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        load(written(tmp_path, text), {})
