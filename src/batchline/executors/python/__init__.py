"""The executor for Python operations, with a module for each place where a function runs.

Start with `python_executor`, then `calls`, which is one call of a function, and `judge`, which makes
verdicts.
"""

from batchline.executors.python.python_executor import PythonExecutor as PythonExecutor
