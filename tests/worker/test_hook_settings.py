"""The hooks of the settings: what they run, what they are called, what they get, and which are refused."""

import sys
from pathlib import Path

import pytest

from batchline.config.settings import WorkerSettings
from batchline.hooks.hook import Hook, HookRefused, Hooks, hooks_of
from batchline.hooks.process import run_hook

EVENT = b'{"type": "batch.completed"}'


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Modules of the operator, one of them with an entry point."""
    (tmp_path / "reports.py").write_text(
        "import os\n"
        "NOT_A_FUNCTION = 1\n"
        "def send(event): print(event['type'], sorted(os.environ))\n"
        "async def send_later(event): print('later', event['type'])\n"
        "class Reports:\n"
        "    @staticmethod\n"
        "    def send(event): print('nested', event['type'])\n"
    )
    (tmp_path / "broken.py").write_text("import absent_module\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    info = tmp_path / "reports-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reports\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[batchline.on_end]\nreport = reports:send_later\n")
    return tmp_path


def hooks(modules: Path, *functions: str) -> Hooks:
    return hooks_of(WorkerSettings(on_end=functions), {"PYTHONPATH": str(modules)})


def first_of(known: Hooks) -> Hook:
    hook = known.hooks[0]
    assert isinstance(hook, Hook)
    return hook


async def said(known: Hooks) -> str:
    """What the first hook says to an event."""
    outcome = await run_hook(first_of(known), EVENT, timeout=60, environment=known.environment or {})
    assert outcome.delivered, outcome
    return outcome.output


async def test_a_function_an_async_function_and_a_method_are_called_with_the_event(modules: Path) -> None:
    assert (await said(hooks(modules, "reports:send"))).startswith("batch.completed ")
    assert await said(hooks(modules, "reports:send_later")) == "later batch.completed\n"
    assert await said(hooks(modules, "reports:Reports.send")) == "nested batch.completed\n"


async def test_an_entry_point_is_called_by_its_name(modules: Path) -> None:
    known = hooks(modules, "report")
    assert known.names == ("report",)
    assert await said(known) == "later batch.completed\n"


async def test_a_module_of_the_current_folder_is_found_after_installed_ones(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (modules / "json.py").write_text("raise SystemExit('this file must not replace an installed module')\n")
    monkeypatch.chdir(modules)
    known = hooks_of(WorkerSettings(on_end=("reports:send_later",)), {})
    assert await said(known) == "later batch.completed\n"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("absent:send", "cannot import it: ModuleNotFoundError: No module named 'absent'"),
        ("reports:absent", "cannot import it: AttributeError: module 'reports' has no attribute 'absent'"),
        ("broken:send", "cannot import it: ModuleNotFoundError: No module named 'absent_module'"),
        ("leaving:send", "cannot import it: SystemExit: 0"),
        ("reports:NOT_A_FUNCTION", "NOT_A_FUNCTION in reports is not a function"),
        (
            "absent",
            "give module:function, or the name of an entry point in batchline.on_end; installed are report",
        ),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_with_the_reason(
    modules: Path, target: str, reason: str
) -> None:
    with pytest.raises(HookRefused) as refused:
        hooks(modules, target)
    assert str(refused.value) == f"--on-end {target}: {reason}"


def test_a_command_is_named_after_its_program_and_not_after_its_arguments() -> None:
    def named(*words: str) -> str:
        return hooks_of(WorkerSettings(on_end_command=words), {"PATH": "/usr/bin:/bin"}).names[0]

    one, other = named("echo", "sk-secret-1"), named("echo", "sk-secret-2")
    assert one == named("echo", "sk-secret-1")
    assert one != other
    assert one.startswith("echo-")
    assert "secret" not in one + other


def test_a_program_is_found_on_the_path_or_by_its_file_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(word: str) -> str:
        known = hooks_of(WorkerSettings(on_end_command=(word, "a")), {"PATH": "/usr/bin:/bin"})
        return first_of(known).command[0]

    (tmp_path / "tell").write_text("#!/bin/sh\n")
    (tmp_path / "tell").chmod(0o755)
    (tmp_path / "data").write_text("not a program")
    monkeypatch.chdir(tmp_path)
    assert program("env") == "/usr/bin/env"
    assert program("./tell") == str(tmp_path / "tell")
    for missing in ("tell", "./data", "./absent"):
        with pytest.raises(HookRefused, match="there is no program"):
            program(missing)


def test_only_harmless_variables_and_those_that_the_settings_name_are_passed_on() -> None:
    environ = {
        "PATH": "/usr/bin",
        "LC_ALL": "C.UTF-8",
        "BATCHLINE_DATABASE_URL": "postgresql://u:p@host/db",
        "OPENAI_API_KEY": "sk-1",
        "PGPASSWORD": "p",
        "AWS_SECRET_ACCESS_KEY": "s",
        "CHAT_URL": "https://chat.example/hook",
    }
    assert hooks_of(WorkerSettings(), environ).environment == {"PATH": "/usr/bin", "LC_ALL": "C.UTF-8"}
    named = hooks_of(WorkerSettings(on_end_env=("CHAT_URL", "NOT_SET")), environ).environment
    assert named == {"PATH": "/usr/bin", "LC_ALL": "C.UTF-8", "CHAT_URL": "https://chat.example/hook"}


def test_the_check_of_a_function_has_the_environment_of_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "curious.py").write_text(
        "import os\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(' '.join(os.environ))\n"
        "def send(event): ...\n"
    )
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    hooks(tmp_path, "curious:send")
    assert "OPENAI_API_KEY" not in (tmp_path / "seen").read_text().split()
    assert "curious" not in sys.modules
