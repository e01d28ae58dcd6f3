from collections.abc import Iterator

import orders
import pytest
from orders import Order, charge

from batchline import Batchline, Fail


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batchline]:
    """The app of the program, on an embedded PostgreSQL of the tests."""
    data = tmp_path_factory.mktemp("batchline")
    with pytest.MonkeyPatch.context() as patched, orders.app as app:
        patched.setenv("BATCHLINE_DATA_DIR", str(data))
        patched.delenv("BATCHLINE_DATABASE_URL", raising=False)
        yield app


def test_the_function_itself() -> None:
    assert charge(Order(7, cents=100)) == "receipt 7"
    with pytest.raises(Fail, match="nothing to pay"):
        charge(Order(7, cents=0))


def test_a_batch_of_it(app: Batchline) -> None:
    assert app.map(charge, [Order(1, cents=5), Order(2, cents=5)]) == ["receipt 1", "receipt 2"]


def test_an_order_that_costs_nothing_fails_alone(app: Batchline) -> None:
    batch = app.sync.submit(charge, [Order(1, cents=5), Order(2, cents=0)])
    batch.wait(timeout=60)
    assert [result.ok for result in batch.results()] == [True, False]
