"""`batchline worker` runs the stages of its batchline.toml: real processes, with and without lines beside."""

import json
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner

from batchline import Batchline
from batchline.app.stage_requests import stage_requests
from batchline.cli.app_worker import AppOrder
from batchline.cli.commands import worker
from batchline.cli.display.console import CommandError
from batchline.cli.main import command_line
from batchline.config.settings import WorkerSettings
from tests.support.gated_upstream import GatedUpstream, gated_upstream
from tests.support.hooks import recorded, recording
from tests.support.processes import batchline, kill, working
from tests.support.stage_files import SUMMARIZE, TRANSLATE, stage_file
from tests.support.waiting import LIMIT, wait_for


@pytest.fixture
def upstream() -> Iterator[GatedUpstream]:
    with gated_upstream() as upstream:
        yield upstream


@pytest.fixture
def config(tmp_path: Path, upstream: GatedUpstream) -> Path:
    return stage_file(tmp_path, upstream.url, SUMMARIZE, TRANSLATE)


@pytest.fixture
def app(database_url: str, tmp_path: Path, config: Path) -> Iterator[Batchline]:
    with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:
        yield app


def rows(count: int) -> list[dict[str, object]]:
    return [{"id": number, "text": f"text {number}"} for number in range(count)]


def test_a_worker_without_an_app_runs_the_stages_of_its_file(
    app: Batchline, config: Path, database_url: str, tmp_path: Path
) -> None:
    batch = app.sync.submit(app.stage("summarize"), rows(10))
    options = ("--config", str(config), "--drain", "--json")
    with working(database_url, tmp_path / "data", *options) as process:
        out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"claimed": 20, "completed": 20, "failed": 0, "held": []}
    found = {result.key: result.get()["translate"] for result in batch.results(stage=app.stage("translate"))}
    assert found == {
        str(number): f"You said: Translate: You said: Summarize: text {number}" for number in range(10)
    }


def test_after_kill_9_no_item_is_lost_and_none_is_emitted_twice(
    app: Batchline, upstream: GatedUpstream, config: Path, database_url: str, tmp_path: Path
) -> None:
    count = 300
    batch = app.sync.submit(app.stage("summarize"), rows(count))
    options = ("--config", str(config), "--lease", "2s")
    # Some requests are answered, and others are in flight when the worker dies.
    upstream.allow(count)
    with working(database_url, tmp_path / "data", *options) as process:
        wait_for("a request that waits", lambda: upstream.keys.total() > count)
        kill(process, signal.SIGKILL)
    assert batch.status().status != "completed"
    upstream.allow()
    with working(database_url, tmp_path / "data", *options, "--drain") as process:
        process.communicate(timeout=LIMIT)
    progress = batch.wait(here=False, timeout=LIMIT)
    assert {name: (stage.completed, stage.total) for name, stage in progress.stages.items()} == {
        "summarize": (count, count),
        "translate": (count, count),
    }
    emitted = Counter(result.key for result in batch.results(stage=app.stage("translate")))
    assert emitted == Counter(map(str, range(count)))


def test_a_worker_that_drains_runs_the_hooks_of_batches_of_stages(
    app: Batchline, upstream: GatedUpstream, config: Path, database_url: str, tmp_path: Path
) -> None:
    batch = app.sync.submit(app.stage("summarize"), rows(2))
    hook = recording(tmp_path / "got")
    # So that the worker for lines has time to drain before the batch ends.
    upstream.allow(0)
    options = ("--config", str(config), "--drain", "--on-end-command", shlex.join(hook.command))
    with working(database_url, tmp_path / "data", *options) as process:
        wait_for("a request that waits", lambda: upstream.keys.total() > 0)
        upstream.allow()
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert [event["data"]["id"] for event in recorded(tmp_path / "got")] == [batch.id]


def test_the_worker_for_stages_has_the_settings_of_the_server(
    upstream: GatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = stage_file(tmp_path, upstream.url, TRANSLATE)
    config.write_text(
        f'[server]\nallow_private_webhooks = true\nresults_retention = "1h"\n{config.read_text()}'
    )
    found: list[WorkerSettings] = []

    def recorded_order(context: object, settings: object, server: object, order: AppOrder) -> None:
        found.append(order.settings.worker)
        raise CommandError("that is enough")

    monkeypatch.setattr(worker, "stages_beside", recorded_order)
    options = ["--config", str(config), "--data-dir", str(tmp_path / "data")]
    CliRunner().invoke(command_line(), ["worker", *options])
    assert [(each.allow_private_webhooks, each.results_retention) for each in found] == [(True, 3600)]


def test_metrics_have_the_requests_of_stages(
    app: Batchline, upstream: GatedUpstream, config: Path, database_url: str, tmp_path: Path
) -> None:
    app.sync.submit(app.stage("summarize"), rows(2))
    upstream.allow(0)
    options = ("--config", str(config), "--drain", "--metrics-port", "0")
    with working(database_url, tmp_path / "data", *options) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        wait_for("both requests", lambda: upstream.keys.total() == 2)
        with urlopen(url, timeout=LIMIT) as page:
            text = page.read().decode()
        upstream.allow()
        process.communicate(timeout=LIMIT)
    assert 'batchline_upstream_in_flight{upstream="sim"} 2.0' in text.splitlines()


async def test_requests_of_stages_have_the_ids_of_their_traces_where_the_settings_say_so(
    app: Batchline, upstream: GatedUpstream
) -> None:
    requests = stage_requests([app.stage("translate")], WorkerSettings(), traced=[upstream.url])
    assert requests.upstreams is not None
    assert requests.upstreams.get(upstream.url).traced


def test_a_stage_that_leads_to_a_function_is_left_to_workers_of_the_app(
    upstream: GatedUpstream, database_url: str, tmp_path: Path
) -> None:
    config = stage_file(tmp_path, upstream.url, SUMMARIZE)
    with Batchline(database_url, data_dir=tmp_path / "data", config=config) as app:

        @app.operation
        async def translate(row: dict[str, object]) -> None: ...

        batch = app.sync.submit(app.stage("summarize"), rows(1))
        options = ("--config", str(config), "--drain", "--log-json")
        with working(database_url, tmp_path / "data", *options) as process:
            _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0
        (line,) = (json.loads(each) for each in err.splitlines() if "a stage leads to functions" in each)
        assert (line["stage"], line["functions"]) == ("summarize", "translate")
        assert batch.status().pending == 1


@pytest.mark.parametrize(
    "stages", [(TRANSLATE.replace("summary }}", "summary"),), (f'{TRANSLATE}\nemits = ["translate"]',)]
)
def test_a_server_does_not_start_with_stages_that_its_worker_would_refuse(
    upstream: GatedUpstream, tmp_path: Path, stages: tuple[str, ...]
) -> None:
    config = stage_file(tmp_path, upstream.url, *stages)
    done = batchline(
        "serve", "--no-auth", "--port", "0", "--config", str(config), "--data-dir", str(tmp_path / "data")
    )
    assert done.returncode == 2
    assert "batchline.toml, line " in done.stderr


@pytest.mark.parametrize(
    ("stages", "options", "message"),
    [
        ((SUMMARIZE, TRANSLATE.replace("large", "")), (), "stages.translate.model: must be a text"),
        ((TRANSLATE.replace("summary }}", "summary"),), (), "line 8: stages.translate.prompt: the template"),
        (
            (SUMMARIZE, f'{TRANSLATE}\nemits = ["summarize"]'),
            (),
            "stages follow each other in a cycle: summarize → translate → summarize",
        ),
        ((TRANSLATE,), ("--max-items", "5"), "--max-items counts the items of one worker"),
    ],
)
def test_a_mistake_ends_the_worker_with_2(
    upstream: GatedUpstream, tmp_path: Path, stages: tuple[str, ...], options: tuple[str, ...], message: str
) -> None:
    config = stage_file(tmp_path, upstream.url, *stages)
    done = batchline("worker", "--config", str(config), "--data-dir", str(tmp_path / "data"), *options)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
