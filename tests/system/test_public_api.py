"""What `import batchline` offers, and what it costs."""

import subprocess
import sys

import pytest

import batchline


@pytest.mark.parametrize("name", batchline.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(batchline, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        batchline.nothing_like_it  # noqa: B018


def test_importing_batchline_imports_nothing_else_of_it() -> None:
    script = "import sys, batchline; print([name for name in sys.modules if name.startswith('batchline.')])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"


def test_an_app_opens_nothing_before_it_needs_the_database() -> None:
    script = (
        "import batchline\n"
        "app = batchline.Batchline('postgresql://nobody@127.0.0.1:1/nothing')\n"
        "@app.operation\n"
        "def square(number: int) -> int: return number * number\n"
        "print(square(3), list(app.operations))\n"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "9 ['square']"
