"""The settings reference has every setting as it is defined."""

from batchline.config.definitions import settings_of
from batchline.config.loading import TABLES
from tools.settings_reference import PAGE, rendered


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert rendered(page) == page, "run python -m tools.settings_reference"


def test_the_page_has_every_table_and_every_key_of_the_file() -> None:
    page = PAGE.read_text()
    for name, owner in TABLES.items():
        assert f"<!-- settings: {name} -->" in page
        for key, each in settings_of(owner).items():
            assert not each.in_file or f"| `{key}` |" in page
