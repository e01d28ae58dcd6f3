"""Options of `run` that say whether lines go through the upstream's batch API, and how."""

from dataclasses import dataclass, replace

import msgspec

from batchline.cli import options
from batchline.cli.display.console import CommandError
from batchline.cli.option_groups import given_options
from batchline.config.settings import UpstreamSettings
from batchline.model import RunSettings, Via

# Longer than any batch has left.
_ALWAYS = 1e12


@dataclass(frozen=True, slots=True)
class RelayOptions:
    via: options.SendVia = None
    batch_api: options.BatchApiName = None
    batch_window: options.BatchWindow = None
    batch_fallback: options.BatchFallback = None
    batch_recovery: options.BatchRecovery = None
    batch_recheck: options.BatchRecheck = None
    batch_max_lines: options.BatchMaxLines = None
    batch_max_tokens: options.BatchMaxTokens = None
    batch_delete_files: options.BatchDeleteFiles = False

    def applied(self, server: UpstreamSettings) -> UpstreamSettings:
        """The upstream with these options. Raises CommandError."""
        given = {key: value for key, value in given_options(self).items() if value is not False}
        if self.via in (None, Via.DIRECT):
            unused = next((key for key in given if key not in ("via", "batch_api")), None)
            if unused is not None:
                option = "--" + unused.replace("_", "-")
                raise CommandError(f"{option} is for --via batch and --via auto; give one of these, too")
        elif server.provider is not None:
            raise CommandError("--via and --provider exclude each other: a provider takes lines one by one")
        return replace(server, **given)


def after_relay(settings: RunSettings, before: RunSettings) -> RunSettings:
    """The settings for a batch that is continued. Chunks that its provider has are cancelled there if lines
    are sent directly from now on."""
    if settings.relay is not None or before.relay is None:
        return settings
    relay = msgspec.structs.replace(before.relay, via=Via.AUTO, fallback=_ALWAYS)
    return msgspec.structs.replace(settings, relay=relay)


def check_relayed(settings: RunSettings) -> None:
    """Raises CommandError for what needs each answer before the next request."""
    if settings.relay is None or settings.relay.via is not Via.BATCH:
        return
    if settings.spending is not None and settings.spending.capped:
        raise CommandError("--via batch cannot keep to --max-cost or --max-tokens; use --via auto or direct")
    if settings.answers is not None:
        raise CommandError("--via batch cannot check answers; use --via auto or direct")
