"""The API reference has every call as the server has it."""

from fastapi.routing import APIRoute

from batchline.api.app import ROUTERS
from tools.api_reference import PAGE, rendered


def test_the_page_is_up_to_date() -> None:
    assert rendered() == PAGE.read_text(), "run python -m tools.api_reference"


def test_the_page_has_every_call() -> None:
    page = PAGE.read_text()
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    documented = [route for route in routes if route.include_in_schema]
    assert len(documented) > 40
    for route in documented:
        # A path may say how a parameter is read: `{model:path}`.
        path = route.path.replace(":path}", "}")
        assert all(f"\n## `{method} {path}`\n" in page for method in route.methods or ())
