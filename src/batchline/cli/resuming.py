"""The `run` command that continues a batch, for display: as it was given, without secrets."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batchline.files.inputs import urls
from batchline.model import Batch, RunCommand
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

    `--sample` is for batches of which only the sample may run.
    """
    command = batch.settings.command
    # Without a resume key, the same command would begin another batch.
    if command is None or batch.resume_key is None:
        return None
    here = command.folder == str(Path.cwd())
    words = shlex.split(command.text.removesuffix(_AGAIN))[1:]
    if batch.pause_rule != "sample":
        words = list(_without_sample(words))
    missing = [flag for flag in flags if flag not in words]
    text = ResumeCommand((*words, *missing), command.text.endswith(_AGAIN)).plus()
    return text if here else f"cd {shlex.quote(command.folder)} && {text}"


def _without_sample(words: Sequence[str]) -> tuple[str, ...]:
    before = ("", *words)
    return tuple(
        word
        for word, last in zip(words, before, strict=False)
        if word not in ("--sample", "--yes") and not word.startswith("--sample=") and last != "--sample"
    )


def how_to_continue(batch: Batch) -> str:
    """What to do so that an unfinished batch ends."""
    worker = "batchline worker --unfinished-runs" if batch.settings.reserved else "batchline worker"
    command = continued_by(batch)
    return (
        f"`{worker}` continues it" if command is None else f"continue with\n  {command}\nor with `{worker}`"
    )
