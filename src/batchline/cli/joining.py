"""`run --join`: the rows of a command's inputs, to be joined to its output."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from batchline.files.ingest import Fingerprint, InputUnreadable
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.input_set import InputSet
from batchline.tables.columns import TableError

_CUSTOM_ID = "custom_id"
# Of request lines: the same on all lines, or in the output anyway.
_LEFT_OUT = {_CUSTOM_ID, "method"}


class JoinedInputs:
    """The columns of request lines, or those of the user's rows. `known`: what the batch was created from."""

    def __init__(self, inputs: InputSet, known: Fingerprint) -> None:
        self._inputs = inputs
        self._known = known
        template = inputs.template
        self.id_column = _CUSTOM_ID if template is None else template.id_column

    @cached_property
    def columns(self) -> Sequence[str]:
        left_out = _LEFT_OUT if self._inputs.template is None else {_CUSTOM_ID} & {self.id_column}
        try:
            return [name for name in self._inputs.columns() if name not in left_out]
        except InputRefused as error:
            raise TableError(f"--join cannot read the input: {error}") from error

    def check_unchanged(self) -> None:
        """Compares digests: an editor can keep the size and the time of a file."""
        try:
            if self._inputs.fingerprint().digest == self._known.digest:
                return
        except InputUnreadable as error:
            raise TableError(f"--join cannot read the input: {error}") from error
        raise TableError(
            f"{self._inputs.title} has changed since its lines were sent, and --join needs it as it was;"
            " restore it and give the same command again, or leave out --join"
        )

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        try:
            yield from self._inputs.rows()
        except InputRefused as error:
            raise TableError(f"--join cannot read the input: {error}") from error
