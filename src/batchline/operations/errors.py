"""The errors of the Python library."""


class BatchlineError(Exception):
    """The base of all errors of the Python library."""


class InvalidApp(BatchlineError):
    """An operation, or the way in which operations refer to each other, is wrong."""


class InvalidItem(BatchlineError):
    """An item does not match the type of its operation. `index` is its position, from 0, if it has one."""

    def __init__(self, index: int | None, message: str) -> None:
        super().__init__(index, message)
        self.index = index
        self.message = message

    def __str__(self) -> str:
        return self.message if self.index is None else f"item {self.index}: {self.message}"


class DuplicateKey(BatchlineError):
    """A key that may be submitted once was submitted before, or twice. `index`: the position of its item."""

    def __init__(self, key: str, index: int) -> None:
        super().__init__(key, index)
        self.key = key
        self.index = index

    def __str__(self) -> str:
        return (
            f'item {self.index}: the key "{self.key}" was submitted before;'
            ' on_conflict="skip" leaves such items out'
        )


class ItemFailed(BatchlineError):
    """An item has failed for good."""

    def __init__(self, code: str, message: str, index: int, key: str) -> None:
        super().__init__(code, message, index, key)
        self.code = code
        self.message = message
        self.index = index
        self.key = key

    def __str__(self) -> str:
        return f"item {self.index} failed with {self.code}: {self.message}"


class BatchClosed(BatchlineError):
    """The batch accepts no more items."""


class DatabaseUnavailable(BatchlineError):
    """The database cannot be reached, or does not accept this program."""
