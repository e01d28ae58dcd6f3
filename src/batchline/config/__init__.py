"""All settings of Batchline, fed by batchline.toml, the environment and flags.

It imports nothing else of Batchline. Start with `settings`, the tree in which each setting is defined once;
`kinds` has the types of values, `loading` reads them. Unknown keys are errors, in the file and in the
environment: a limit with a typing mistake in its name would not be a limit.
"""

from batchline.config.file import SettingsError
from batchline.config.loading import DEFAULT_NAME, load, missing_keys

__all__ = ["DEFAULT_NAME", "SettingsError", "load", "missing_keys"]
