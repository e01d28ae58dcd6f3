"""Refuses work while a child process imports the program.

A program without `if __name__ == "__main__"` would start all its work again in each of its child processes.
"""

import multiprocessing


def check_not_importing(call: str) -> None:
    """Raises RuntimeError in a child process that has not finished its imports. `call` is for the message."""
    # Set by multiprocessing and by our own children.
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            f"{call} was called while a child process imports this module. Put the call under"
            ' if __name__ == "__main__":, so that only the program itself makes it.'
        )
