"""The header `traceparent`: only for lines that are traced, at upstreams that the operator has chosen."""

import pytest
from msgspec.structs import replace

from batchline.executors.http import HttpExecutor
from batchline.model import Completed
from batchline.model.trace import LineTrace
from batchline.upstreams.http_upstream import Upstreams
from tests.support.http_executor import an_item
from tests.support.scripted_upstream import answers_well, upstream_that

TRACE = LineTrace(
    trace_id=0x0AF7651916CD43DD8448EB211C80319C,
    line=1,
    request=0xB7AD6B7169203331,
    claimed=0.0,
    to_unix=0,
    submission=None,
    parameters={},
)


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("traced", [True, False])
async def test_only_a_traced_line_at_a_chosen_upstream_has_the_header(chosen: bool, traced: bool) -> None:
    async with upstream_that(answers_well) as upstream:
        # It is the same upstream, however its URL is written.
        urls = [f"{upstream.url}/"] if chosen else ["http://127.0.0.1:9"]
        executor = HttpExecutor(Upstreams(traced=urls))
        try:
            item = replace(an_item(upstream.url), trace=TRACE if traced else None)
            assert isinstance(await executor.run(item), Completed)
        finally:
            await executor.close()
        (request,) = upstream.requests
    wanted = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" if chosen and traced else None
    assert request.headers.get("traceparent") == wanted
