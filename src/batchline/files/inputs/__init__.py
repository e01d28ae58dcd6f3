"""Inputs of the command line in any format: located, detected, read as rows, rendered to request lines.

Start with `input_set`. Inputs may be URLs, so only the command line and programs of the user's own open them;
the server never does (an import contract checks that).
"""
