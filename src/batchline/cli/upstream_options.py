"""Options of `run` and `submit` that say where lines are sent, and how."""

from dataclasses import dataclass

from batchline.batches.creation import InvalidWindow, window_or_none
from batchline.cli import options
from batchline.cli.display.console import CommandError
from batchline.cli.option_groups import given_options
from batchline.config.settings import UpstreamSettings
from batchline.secrets.addresses import public_url
from batchline.upstreams import urls


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    upstream: options.Upstream = None
    api_key_env: options.ApiKeyEnv = None
    max_attempts: options.MaxAttempts = None
    timeout: options.Timeout = None
    provider: options.Provider = None
    provider_recovery: options.ProviderRecovery = None
    provider_max_tasks: options.ProviderMaxTasks = None
    provider_recheck: options.ProviderRecheck = None

    def settings(self) -> UpstreamSettings:
        """The upstream, with the options that the user gave. Raises CommandError."""
        given = given_options(self)
        url = given.pop("upstream", None)
        if url is None:
            raise CommandError("no upstream: give --upstream URL or set BATCHLINE_UPSTREAM")
        if not url.startswith(urls.SCHEMES):
            raise CommandError(
                f"--upstream {public_url(url)!r}: give a URL that begins with http:// or https://"
            )
        return UpstreamSettings("", urls.normalized(url), **given)


def check_window(window: str) -> None:
    try:
        window_or_none(window)
    except InvalidWindow as error:
        raise CommandError(str(error)) from error
