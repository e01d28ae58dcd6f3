"""Errors of the Kubernetes API: Status objects with the reasons and messages of the real one."""

from typing import Any

import msgspec

GROUP = "kubevirt.io"


class StatusError(Exception):
    """An error that is sent as an HTTP answer with a Status object."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.headers = headers
        self.body = msgspec.json.encode(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": reason,
                **({"details": details} if details else {}),
                "code": code,
            }
        )


def not_found(resource: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{_full(resource)} "{name}" not found', _details(resource, name))


def already_exists(resource: str, name: str, *, going: bool) -> StatusError:
    message = f'{_full(resource)} "{name}" already exists'
    if going:
        message = f"object is being deleted: {message}"
    return StatusError(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_full(resource)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def modified(resource: str, name: str) -> StatusError:
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def invalid(kind: str, name: str, field: str, why: str) -> StatusError:
    details = {
        "name": name,
        "group": GROUP,
        "kind": kind,
        "causes": [{"reason": "FieldValueInvalid", "message": why, "field": field}],
    }
    return StatusError(422, "Invalid", f'{kind}.{GROUP} "{name}" is invalid: {field}: {why}', details)


def denied(field: str, why: str) -> StatusError:
    """A refusal by KubeVirt's admission webhook."""
    message = f'admission webhook "virtualmachine-validator.kubevirt.io" denied the request: {why}'
    details = {"causes": [{"reason": "FieldValueInvalid", "message": why, "field": field}]}
    return StatusError(422, "Invalid", message, details)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def internal(why: str) -> StatusError:
    details = {"causes": [{"message": why}]}
    return StatusError(500, "InternalError", f"Internal error occurred: {why}", details)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def unknown_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def wrong_method() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def wrong_type(accepted: str) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    return StatusError(415, "UnsupportedMediaType", message)


def too_many(seconds: int) -> StatusError:
    message = "the server has received too many requests and has asked us to try again later"
    details = {"retryAfterSeconds": seconds}
    return StatusError(429, "TooManyRequests", message, details, b"Retry-After: %d\r\n" % seconds)


def unavailable() -> StatusError:
    message = "the server is currently unable to handle the request"
    return StatusError(503, "ServiceUnavailable", message)


def _full(resource: str) -> str:
    return resource if resource == "namespaces" else f"{resource}.{GROUP}"


def _details(resource: str, name: str) -> dict[str, Any]:
    group = {} if resource == "namespaces" else {"group": GROUP}
    return {"name": name, **group, "kind": resource}
