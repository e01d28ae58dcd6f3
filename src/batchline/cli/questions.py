"""Questions with the answers yes and no, on a terminal."""

import select
import sys

import typer

# A Ctrl-C that comes just before a wait is noticed only after it.
_MAX_WAIT = 0.2
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


def confirmed_by_user(question: str) -> bool:
    """Raises Abort on Ctrl-C and at the end of the input. As `typer.confirm`, but that waits without a limit:
    it does not notice a Ctrl-C that comes between its last look for signals and its wait."""
    while True:
        answer = _answer_to(f"{question} [y/N]: ")
        if not answer:
            # The shell's next line does not begin behind the question.
            typer.echo(err=True)
            raise typer.Abort
        found = _ANSWERS.get(answer.strip().lower())
        if found is not None:
            return found
        typer.echo("Error: invalid input", err=True)


def _answer_to(prompt: str) -> str:
    """The next line; empty after Ctrl-C or at the end of the input."""
    try:
        typer.echo(prompt, nl=False, err=True)
        while not select.select([sys.stdin], [], [], _MAX_WAIT)[0]:
            continue
        return sys.stdin.readline()
    except KeyboardInterrupt:
        return ""
