"""Questions with the answers yes and no, on a terminal."""

import select
import sys

import typer

# A Ctrl-C that comes just before a wait is noticed after it.
_LOOK_EVERY = 0.2
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


def confirmed_by_user(question: str) -> bool:
    """Raises Abort at the end of the input, and KeyboardInterrupt. `input` would miss a Ctrl-C that comes
    right after the question: it looks for signals only before it has printed its prompt."""
    while True:
        typer.echo(f"{question} [y/N]: ", nl=False, err=True)
        while not select.select([sys.stdin], [], [], _LOOK_EVERY)[0]:
            continue
        answer = sys.stdin.readline()
        if not answer:
            raise typer.Abort
        found = _ANSWERS.get(answer.strip().lower())
        if found is not None:
            return found
        typer.echo("Error: invalid input", err=True)
