"""A stage that sends each item to a model: an operation without a function of the user's.

An item is a JSON object. Its result is the item with one more field, the model's answer, and that is also
what later stages get.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from batchline.config.settings import StageSettings, UpstreamSettings
from batchline.model import RunSettings
from batchline.operations.codec import ItemCodec, TypeMismatch
from batchline.operations.errors import InvalidApp
from batchline.operations.operation import PythonOperation
from batchline.operations.options import LOOP, OperationOptions

Render: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

_encode = msgspec.json.Encoder().encode


class HttpStage(PythonOperation[dict[str, Any], dict[str, Any]]):
    """A stage of batchline.toml. `render` makes the request for an item; it raises TypeMismatch. `names`: the
    names of declared stages in this app, if they differ. The declared name stays in `settings`."""

    def __init__(
        self,
        settings: StageSettings,
        upstream: UpstreamSettings,
        render: Render,
        names: Mapping[str, str] | None = None,
    ) -> None:
        codec = ItemCodec[dict[str, Any], dict[str, Any]](dict[str, Any], dict[str, Any])
        names = names or {}
        name = names.get(settings.name, settings.name)
        super().__init__(name, _not_here, _options(settings, upstream, names), codec)
        self.settings = settings
        self.upstream = upstream
        # The field that gets the answer.
        self.output = settings.output or settings.name
        self._render = render

    def renamed(self, names: Mapping[str, str]) -> "HttpStage":
        """The same stage under the name that `names` has for it, and so for the stages that it emits."""
        return HttpStage(self.settings, self.upstream, self._render, names)

    def request(self, item: bytes) -> bytes:
        """The body of the request for an item. Raises TypeMismatch, also if the item lacks a field."""
        try:
            return _encode(self._render(self.codec.decode_item(item)))
        except UnicodeEncodeError:
            raise TypeMismatch("the request has half of a surrogate pair, which is not UTF-8") from None

    @property
    def shares_upstream(self) -> bool:
        """Whether its requests take slots of the upstream, and not slots of their own."""
        return self.settings.concurrency is None

    def run_settings(self) -> RunSettings:
        """How its requests run: as lines at the upstream, with the attempts and the time of the stage."""
        return RunSettings(
            upstream=self.upstream.base_url,
            api_key_env=self.upstream.api_key_env,
            max_attempts=self.options.max_attempts,
            timeout=self.settings.timeout or self.upstream.timeout,
        )


def missing_stage_keys(stages: Sequence[HttpStage], environ: Mapping[str, str]) -> list[str]:
    """The stages whose API keys are not in the environment, one sentence each."""
    return [
        f"stage {stage.settings.name!r}: set the environment variable {variable} to the API key of upstream"
        f" {stage.upstream.name}"
        for stage in stages
        if (variable := stage.upstream.api_key_env) and not environ.get(variable, "").strip()
    ]


def _options(
    settings: StageSettings, upstream: UpstreamSettings, names: Mapping[str, str]
) -> OperationOptions:
    return OperationOptions(
        max_attempts=settings.max_attempts or upstream.max_attempts,
        timeout=settings.timeout or upstream.timeout,
        concurrency=settings.concurrency or upstream.concurrency,
        run_in=LOOP,
        emits=tuple(dict.fromkeys(names.get(name, name) for name in settings.emits)),
        keep_results=settings.keep_results,
    )


def _not_here(item: dict[str, Any]) -> dict[str, Any]:
    """A stage of batchline.toml."""
    raise InvalidApp("a stage of batchline.toml runs in a worker; submit items to it")
