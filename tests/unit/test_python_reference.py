"""The reference of the Python library's names is current."""

from tools.python_reference import PAGE, rendered


def test_the_reference_has_every_public_name_with_its_signature_and_docstring() -> None:
    assert rendered() == PAGE.read_text(), "run python -m tools.python_reference"
