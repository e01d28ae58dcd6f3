"""The `run` command that continues a batch, for display: as it was given, without secrets."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from batchline.files.inputs import urls
from batchline.model import Batch, RunCommand, Spending
from batchline.model.spending import dollars
from batchline.secrets.addresses import public_url
from batchline.secrets.masking import masked_text

# Options whose values can contain a password.
_ADDRESSES = {"--upstream": public_url, "--database": masked_text}
_AGAIN = "  # give the credentials of its URLs again; they are not shown"
# Longer commands, as of a shell that expands a pattern, are not stored.
_MAX_STORED = 4096


@dataclass(frozen=True, slots=True)
class ResumeCommand:
    words: tuple[str, ...]
    # Whether something secret was left out, so that the command does not work as it is displayed.
    hidden: bool = False

    def __str__(self) -> str:
        return self.plus()

    def plus(self, *flags: str) -> str:
        return shlex.join(("batchline", *self.words, *flags)) + (_AGAIN if self.hidden else "")

    def without_sample(self) -> "ResumeCommand":
        """For a batch of which more than the sample may run."""
        return replace(self, words=_without_sample(self.words))

    @property
    def stored(self) -> RunCommand | None:
        """For the batch, so that other commands can say how to continue it."""
        text = str(self)
        return RunCommand(text, str(Path.cwd())) if len(text) <= _MAX_STORED else None


def resume_command(inputs: Sequence[str]) -> ResumeCommand:
    """This process's command without `--fresh`."""
    given = [word for word in sys.argv[1:] if word != "--fresh"]
    words, before = [], ""
    for word in given:
        words.append(_displayed(word, before, inputs))
        before = word
    return ResumeCommand(tuple(words), words != given)


def _displayed(word: str, before: str, inputs: Sequence[str]) -> str:
    if (hide := _ADDRESSES.get(before)) is not None:
        return hide(word)
    option, equals, value = word.partition("=")
    if equals and (hide := _ADDRESSES.get(option)) is not None:
        return f"{option}={hide(value)}"
    return urls.public_name(word) if word in inputs else word


def continued_by(batch: Batch, *flags: str) -> str | None:
    """The `run` command that continues an unfinished batch, with these flags, if it is known.

    `--sample` is for batches of which only the sample may run. `resume` may have changed the caps.
    """
    command = batch.settings.command
    # Without a resume key, the same command would begin another batch.
    if command is None or batch.resume_key is None:
        return None
    here = command.folder == str(Path.cwd())
    words = shlex.split(command.text.removesuffix(_AGAIN))[1:]
    if not batch.sampling:
        words = list(_without_sample(words))
    for option, cap in _caps(batch):
        words = _with_cap(words, option, cap)
    missing = [flag for flag in flags if flag not in words]
    text = ResumeCommand((*words, *missing), command.text.endswith(_AGAIN)).plus()
    return text if here else f"cd {shlex.quote(command.folder)} && {text}"


def _caps(batch: Batch) -> Iterator[tuple[str, float]]:
    spending = batch.settings.spending or Spending()
    if spending.max_cost is not None:
        yield "--max-cost", dollars(spending.max_cost)
    if spending.max_tokens is not None:
        yield "--max-tokens", spending.max_tokens


def _with_cap(words: list[str], option: str, cap: float) -> list[str]:
    """The words as they are if they have this cap."""
    given = [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]
    given += [word for before, word in pairwise(words) if before == option]
    if given and float(given[-1]) == cap:
        return words
    return [*_without(words, option), option, f"{cap:.9f}".rstrip("0").rstrip(".")]


def _without_sample(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for word in _without(words, "--sample") if word != "--yes")


def _without(words: Sequence[str], option: str) -> list[str]:
    """Without the option and its value."""
    return [
        word
        for before, word in pairwise(("", *words))
        if option not in (before, word) and not word.startswith(f"{option}=")
    ]


def how_to_continue(batch: Batch) -> str:
    """What to do so that an unfinished batch ends."""
    worker = "batchline worker --unfinished-runs" if batch.settings.reserved else "batchline worker"
    command = continued_by(batch)
    return (
        f"`{worker}` continues it" if command is None else f"continue with\n  {command}\nor with `{worker}`"
    )
