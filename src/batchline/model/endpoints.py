"""Paths that lines may have: those of OpenAI's batches, and further ones that an operator allows."""

import re
from difflib import get_close_matches

import msgspec

ENDPOINTS = frozenset(
    {
        "/v1/responses",
        "/v1/chat/completions",
        "/v1/embeddings",
        "/v1/completions",
        "/v1/moderations",
        "/v1/images/generations",
        "/v1/images/edits",
        "/v1/videos",
    }
)
_BELOW = "/*"
_MAX_LENGTH = 256
# Neither a query, nor an escape, nor an empty segment. Dots alone are excluded separately.
_SEGMENT = r"/[A-Za-z0-9._~:@+-]+"
_PATH = re.compile(rf"(?:{_SEGMENT})+")
_PATTERN = re.compile(rf"(?:{_SEGMENT})*/\*|(?:{_SEGMENT})+")
_DOTS = re.compile(r"/\.{1,2}(?:/|$)")
# Paths of model servers that answer no POST of JSON with JSON, also if a pattern matches them.
_OTHERS = {
    "/v1/models": "is read with GET",
    "/v1/files": "takes a form",
    "/v1/uploads": "takes a form",
    "/v1/batches": "creates a batch",
    "/v1/realtime": "is a stream",
    "/v1/audio/transcriptions": "takes a form",
    "/v1/audio/translations": "takes a form",
    "/health": "is read with GET",
    "/metrics": "is read with GET",
}


def is_pattern(text: object) -> bool:
    """Whether it is a path such as /v1/score, or all paths below one: /v1/*."""
    return isinstance(text, str) and _well_formed(text, _PATTERN)


def _well_formed(path: str, form: re.Pattern[str]) -> bool:
    return len(path) <= _MAX_LENGTH and form.fullmatch(path) is not None and not _DOTS.search(path)


class Endpoints(msgspec.Struct, frozen=True):
    """Which paths are allowed: the known ones, and `further`, which are patterns."""

    further: tuple[str, ...] = ()

    def fault(self, path: str | None) -> str | None:
        """Why a line cannot have this path, for a person; None: it can."""
        if path in ENDPOINTS:
            return None
        if path is None or "://" in path:
            return "must be a path such as /v1/chat/completions, without a host"
        if not self._matches(path):
            return f"must be one of {self.text}"
        if not _well_formed(path, _PATH):
            return (
                f"{path[:_MAX_LENGTH]!r} is not a plain path: letters, digits and . _ ~ : @ + - between"
                " slashes, without dots as a segment, a query or an escape"
            )
        for other, why in _OTHERS.items():
            if path == other or path.startswith(f"{other}/"):
                return f"{path} {why}, and a line is a POST of JSON that is answered with JSON"
        return self._mistyped(path)

    @property
    def text(self) -> str:
        return ", ".join([*sorted(ENDPOINTS), *self.further])

    def _matches(self, path: str) -> bool:
        return any(
            path.startswith(each.removesuffix("*")) if each.endswith(_BELOW) else path == each
            for each in self.further
        )

    def _mistyped(self, path: str) -> str | None:
        """Whether a path that only a pattern allows is nearly a known one."""
        if path in self.further or not path.startswith("/v1/"):
            return None
        close = get_close_matches(path, sorted(ENDPOINTS), 1, 0.9)
        return f"{path} is not known; did you mean {close[0]}?" if close else None


# For commands, whose users choose the upstream themselves.
ANY_ENDPOINT = Endpoints((_BELOW,))
