"""Where requests are sent, and how: the keywords that `run` and the client share."""

import os
from typing import Any

from batchline.config.definitions import settings_of
from batchline.config.settings import UpstreamSettings
from batchline.secrets.addresses import public_url
from batchline.upstreams import urls


def upstream_settings(upstream: str, **given: Any) -> UpstreamSettings:
    """The upstream, with `api_key_env`, `max_attempts`, `timeout` and `concurrency`. None: the default.

    Raises ValueError.
    """
    if not isinstance(upstream, str) or not upstream.startswith(urls.SCHEMES):
        displayed = public_url(upstream) if isinstance(upstream, str) else upstream
        raise ValueError(f"upstream {displayed!r}: give a URL that begins with http:// or https://")
    urls.parse(upstream)
    checked = {name: _checked(name, value) for name, value in given.items() if value is not None}
    variable = checked.get("api_key_env")
    if variable is not None and not os.environ.get(variable, "").strip():
        raise ValueError(f"api_key_env: set the environment variable {variable} to the API key")
    return UpstreamSettings("", urls.normalized(upstream), **checked)


def _checked(name: str, value: Any) -> Any:
    try:
        return settings_of(UpstreamSettings)[name].kind.read(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}, not {value!r}") from None
