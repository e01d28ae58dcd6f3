"""Every call of our OpenAPI document, with what it allows and what it does not."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Err
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from batchline.model import Role
from tests.support.scenes import database
from tests.support.serving import Server, serving

_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def server(server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        database(server_url, template) as url,
        serving(url, tmp_path_factory.mktemp("server")) as running,
    ):
        yield running


@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.name.lower())
def test_no_call_is_answered_other_than_documented(server: Server, mode: Any) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    header = {"authorization": f"Bearer {server.key(role=Role.ADMIN)}"}
    called = 0
    for found in schema.get_all_operations():
        assert not isinstance(found, Err), found
        operation = found.ok()
        raw = operation.definition.raw
        if "text/event-stream" in raw["responses"].get("200", {}).get("content", {}):
            # It does not end. tests/api/test_live_updates.py reads it.
            continue
        # Without a parameter or a body there is nothing to get wrong.
        if mode is schemathesis.GenerationMode.NEGATIVE and not {"parameters", "requestBody"} & raw.keys():
            continue

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Any) -> None:
            nonlocal called
            called += 1
            case.validate_response(case.call(headers=header, timeout=60), checks=_CHECKS)

        call()
    assert called > 100
