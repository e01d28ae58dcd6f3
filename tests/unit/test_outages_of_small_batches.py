"""An outage uses no attempts, however many gateway errors there are, and lines that may still run stay."""

import pytest
from msgspec.structs import replace

from batchline.executors.http import HttpExecutor
from batchline.executors.http_answer import Answer
from batchline.model import Deferred, Item, Retried
from batchline.upstreams.crashes import Reach
from batchline.upstreams.http_upstream import HttpUpstream
from tests.support.http_executor import an_executor, an_item
from tests.support.scripted_upstream import answers, upstream_that

URL = "http://127.0.0.1:9/v1"


def judged(executor: HttpExecutor, item: Item, status: int) -> object:
    upstream: HttpUpstream = executor.upstreams.get(URL)
    route = upstream.route(item.claim.url, None)
    return executor.verdicts.judge(item, route, Answer(status, b"{}", "req_1", started=1e9))


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_gateway_errors_during_an_outage_are_not_counted(status: int) -> None:
    async with an_executor() as executor:
        upstream = executor.upstreams.get(URL)
        upstream.unreached(0.0, "it is away")
        item = an_item(URL)
        assert upstream.away
        assert all(isinstance(judged(executor, item, status), Deferred) for _ in range(50))
        upstream.availability.probed = Reach.PRESENT
        verdicts = [judged(executor, item, status) for _ in range(50)]
        assert isinstance(verdicts[0], Deferred)
        assert isinstance(verdicts[-1], Retried), "the line may be the cause"


@pytest.mark.parametrize(("status", "sent_to"), [(408, "one"), (504, "one"), (502, None), (409, None)])
async def test_a_line_stays_with_an_upstream_that_may_still_run_it(status: int, sent_to: str | None) -> None:
    async with upstream_that(answers(status)) as upstream, an_executor() as executor:
        item = an_item(upstream.url)
        verdict = await executor.run(replace(item, claim=replace(item.claim, sender="one")))
        assert isinstance(verdict, Retried)
        assert verdict.sent_to == sent_to
