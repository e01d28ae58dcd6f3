"""Run the operations of an app in a test: without other processes, and without waiting.

See docs/how-to/python-testing.md. `plugin` has the fixtures for pytest, which it finds by itself.
"""

from batchline.testing.app_run import AppRun, running

__all__ = ["AppRun", "running"]
