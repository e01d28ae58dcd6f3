"""The error of an input that cannot be used."""


class InputRefused(Exception):
    """An input cannot be used. The message says which, at which row, what was found, and what to do."""

    def __init__(self, name: str, message: str, row: int | None = None) -> None:
        super().__init__(f"{name}: {message}" if row is None else f"{name}, row {row}: {message}")
        self.name = name
        self.message = message
        self.row = row


class StreamFault(Exception):
    """The bytes of an input cannot be read any further."""


class RowFault(Exception):
    """A row cannot be read, or cannot become a request."""
