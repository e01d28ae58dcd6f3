"""The official OpenAI client, whose calls are lines of durable batches."""

from pathlib import Path
from types import TracebackType
from typing import Any, Never, Self
from urllib.parse import urlsplit

from msgspec.structs import replace

try:
    import httpx2
    import openai
except ImportError as error:
    raise ImportError(
        f"batchline.AsyncOpenAI needs the official client: pip install 'batchline[openai]' ({error})"
    ) from error

from batchline.app.core import AppLocation
from batchline.app.models.call_session import CallSession
from batchline.app.models.call_transport import CallTransport
from batchline.app.models.refusals import REFUSED
from batchline.app.models.sending import upstream_settings
from batchline.model import DEFAULT_TENANT
from batchline.secrets.addresses import public_url

_MAX_NAME = 255
# The base class needs one. It is never sent: the worker reads the real one from `api_key_env`.
_NO_KEY = "batchline"


class AsyncOpenAI(openai.AsyncOpenAI):
    """Each call is a line of the batch `batch`, and returns when the line has its result. A process that is
    started again, with the same name, gets the answers of calls that were answered before."""

    def __init__(
        self,
        *,
        upstream: str,
        batch: str,
        api_key_env: str | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        concurrency: int | str | None = None,
        finish: bool = False,
        database: str | None = None,
        data_dir: str | Path | None = None,
        **refused: Any,
    ) -> None:
        if refused:
            raise TypeError(_refusal(next(iter(refused))))
        if not isinstance(batch, str) or not 0 < len(batch) <= _MAX_NAME:
            raise ValueError(f"batch must be a name of 1 to {_MAX_NAME} characters")
        settings = upstream_settings(
            upstream,
            api_key_env=api_key_env,
            max_attempts=max_attempts,
            timeout=timeout,
            concurrency=concurrency,
        )
        location = AppLocation(database, None if data_dir is None else Path(data_dir), None, DEFAULT_TENANT)
        # Workers leave the batch to this client, unless they are asked to take it.
        run = replace(settings.run_settings(), reserved=True)
        self._calls = CallSession(location, batch, run, settings)
        self._finish = finish
        base = _base_url(settings.base_url)
        transport = CallTransport(self._calls, urlsplit(base).path)
        # Attempts are those of the batch, and so are their time limits.
        super().__init__(
            api_key=_NO_KEY,
            base_url=base,
            max_retries=0,
            timeout=None,
            http_client=httpx2.AsyncClient(transport=transport),
        )

    async def close(self, *, finish: bool | None = None) -> None:
        """Stop working. `finish`: let the batch end; otherwise the next client of this name continues it."""
        await self._calls.close(finish=self._finish if finish is None else finish)
        await super().close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error, the same program will be started again.
        await self.close(finish=False if kind is not None else None)

    def copy(self, **options: Any) -> Self:
        """This client: the time limit and the attempts are those of the batch."""
        for name in options.keys() - {"timeout", "max_retries"}:
            raise TypeError(_refusal(name))
        return self

    # The base class has its own copy under this name.
    with_options = copy


def _base_url(upstream: str) -> str:
    """For display, and for paths. It has no credentials and no query."""
    base = public_url(upstream).partition("?")[0].rstrip("/")
    return base if urlsplit(base).path else f"{base}/v1"


def _refusal(keyword: str) -> str:
    match keyword:
        case "api_key":
            return "api_key: keys are not stored; put it into an environment variable, and give api_key_env"
        case "base_url":
            return "base_url: give upstream"
        case "max_retries":
            return "max_retries: give max_attempts, which counts the first one, too"
    return f"{keyword} is not an option of a client whose calls are lines of a batch"


def _refuse(name: str, reason: str) -> property:
    def refuse(_: AsyncOpenAI) -> Never:
        raise AttributeError(f"this client has no {name!r}: {reason}; use the official client for it")

    return property(refuse)


for _name, _reason in REFUSED.items():
    setattr(AsyncOpenAI, _name, _refuse(_name, _reason))
