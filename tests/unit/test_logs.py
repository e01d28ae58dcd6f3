"""The log as JSON: valid, complete, and without secrets."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from batchline.cli.logs import set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers = handlers
    set_up_logging()


def test_a_line_is_json_and_secrets_are_masked(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(as_json=True)
    log = structlog.get_logger("x")
    log.warning("bad", url="https://u:hunter2@h/?api_key=s3cr3t", api_key="k3y", n=3, ok=None, path={"a": 1})
    line = json.loads(capfd.readouterr().err)
    assert (line["event"], line["level"], line["n"], line["ok"]) == ("bad", "warning", 3, None)
    assert not {"hunter2", "s3cr3t", "k3y"} & set(json.dumps(line).replace("@", '"').split('"'))
    assert "s3cr3t" not in json.dumps(line)
    assert "hunter2" not in json.dumps(line)


def test_an_exception_is_one_field_without_local_variables(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(as_json=True)
    prompt = "a very private prompt"
    try:
        raise ValueError(f"no {len(prompt)}")
    except ValueError:
        structlog.get_logger("x").exception("failed")
    (written,) = capfd.readouterr().err.splitlines()
    assert "ValueError: no 21" in json.loads(written)["exception"]
    assert prompt not in written


def test_loggers_of_the_standard_library_write_json_too(capfd: pytest.CaptureFixture[str]) -> None:
    set_up_logging(as_json=True)
    logging.getLogger("batchline.embedded").warning("waiting for %s", "a lock")
    line = json.loads(capfd.readouterr().err)
    assert (line["event"], line["logger"], line["level"]) == (
        "waiting for a lock",
        "batchline.embedded",
        "warning",
    )
