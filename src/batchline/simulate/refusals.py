"""Refusals: requests that are not executed, with OpenAI's error envelope."""

import msgspec


class Refusal(Exception):
    """An error response in OpenAI's envelope, always with all four keys."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = msgspec.json.encode(
            {"error": {"message": message, "type": type, "param": param, "code": code}}
        )
        self.headers = headers


def unknown_url(method: bytes, path: bytes) -> Refusal:
    return Refusal(404, f"Invalid URL ({_displayed(method)} {_displayed(path)})", code="unknown_url")


def wrong_method(method: bytes, path: bytes, allowed: bytes) -> Refusal:
    message = f"Not allowed to {_displayed(method)} on {_displayed(path)}: use {_displayed(allowed)}."
    return Refusal(405, message, code="method_not_supported", headers=b"Allow: %b\r\n" % allowed)


def _displayed(text: bytes) -> str:
    return text.decode("latin-1")
