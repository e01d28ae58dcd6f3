"""The command line: Typer commands in `commands/`, output in `display/`.

May import everything. Start with `main`, then the module of a command.
"""
