"""URLs for display: nothing that may be secret is in them, whatever characters it has."""

import pytest

from batchline.secrets.addresses import public_url


@pytest.mark.parametrize(
    ("url", "displayed"),
    [
        ("http://host:8000/v1", "http://host:8000/v1"),
        ("http://bob:hunter2@host:8000/v1?key=K#f", "http://host:8000/v1"),
        ("bob:hunter2@host/v1", "host/v1"),
        ("http://[::1]:8000/v1?who=a@b", "http://[::1]:8000/v1"),
        ("http://bob:hun/ter2@host/v1", "http://host/v1"),
        ("http://bob:hun@ter/2@host/v1", "http://host/v1"),
        ("http://bob:hun?ter2@host/v1", "http://…"),
        ("http://bob:hun#ter2@host/v1", "http://…"),
        ("http://bob:hun@t?er2@host/v1", "http://…"),
        ("http://host/x?sig=a@hunter2", "http://host/x"),
    ],
)
def test_a_displayed_url_has_neither_credentials_nor_query(url: str, displayed: str) -> None:
    assert public_url(url) == displayed
