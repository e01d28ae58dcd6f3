"""batchline.toml: upstreams, limits and operations, checked at the start, with errors that name the line.

Every key of `[server]` can be overridden by the environment as BATCHLINE_SERVER_KEY, of `[limits]` as
BATCHLINE_LIMITS_KEY, and every key of an upstream but its name as BATCHLINE_UPSTREAM_NAME_KEY, in capitals.
What nobody knows is an error, here as there: a limit with a slip in its name would be no limit.
"""

from batchline.config.errors import SettingsError
from batchline.config.reading import DEFAULT_NAME, load
from batchline.config.upstream_tables import missing_keys

__all__ = ["DEFAULT_NAME", "SettingsError", "load", "missing_keys"]
