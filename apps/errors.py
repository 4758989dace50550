"""From exceptions to HTTP: the one place that knows which error is which status.

ApiError                  what a route refuses by itself, with its status
serving.errors            what the generator refuses
ValueError                what a user got wrong, anywhere
anything else             ours: logged, and told without its inside
"""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    OverloadedError,
    ServingError,
)
from training.spec import describe_faults, describe_validation_error

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """A refusal with its HTTP status; `param` names the field that is at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive the way between two replicas."""
        return _rebuild_api_error, (self.status, self.message, self.param, self.code)


_EXPECTED = (
    ApiError,
    ServingError,
    ValueError,
    HTTPException,
    ClientDisconnect,
    RequestValidationError,
    BackPressureError,
    DeploymentUnavailableError,
    RayActorError,
    RayTaskError,
)


def not_found(kind: str, identifier: str) -> ApiError:
    """The error for something that is not there."""
    return ApiError(404, f"there is no {kind} {identifier!r}", param="id", code="not_found")


def to_response(exc: BaseException) -> JSONResponse:
    """Turn any exception into OpenAI's error body with the right status."""
    exc = _unwrap(exc)
    status, param, code, headers = _classify(exc)
    message = str(exc)
    if isinstance(exc, HTTPException):
        message = exc.detail
    elif isinstance(exc, ClientDisconnect):
        message = "the connection was closed before the request was there"
    elif isinstance(exc, ValidationError):
        message = describe_validation_error(exc)
    elif isinstance(exc, RequestValidationError):
        message = describe_faults(exc.errors())
    elif isinstance(exc, (RayActorError, DeploymentUnavailableError)):
        message = "the process that worked on this has ended; another takes its place, try again"
    if status == 500:
        logger.error("a request failed", exc_info=exc)
    if status == 500 and not isinstance(exc, ApiError):
        message = "something went wrong on our side; the server's log has the details"
    return JSONResponse(error_body(status, message, param, code), status, headers)


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Build `{"error": …}` in OpenAI's shape."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception that leaves a route with an error body.

    Starlette raises again what only the handler of `Exception` takes, and Serve logs that as a
    failure of the application, in a hundred lines.
    """

    async def answer(request: Request, exc: Exception) -> JSONResponse:  # noqa: ARG001 - Starlette's signature
        return to_response(exc)

    for kind in (Exception, *_EXPECTED):
        app.add_exception_handler(kind, answer)


def _classify(exc: BaseException) -> tuple[int, str | None, str | None, dict[str, str]]:
    """Return status, param, code and headers of an exception."""
    if isinstance(exc, ApiError):
        return exc.status, exc.param, exc.code, {}
    if isinstance(exc, OverloadedError):
        return 429, exc.param, exc.code, {"retry-after": str(max(1, round(exc.retry_after_s)))}
    if isinstance(exc, BackPressureError):
        return 429, None, "overloaded", {"retry-after": "1"}
    if isinstance(exc, (RayActorError, DeploymentUnavailableError)):
        return 503, None, "unavailable", {"retry-after": "1"}
    if isinstance(exc, EngineDeadError):
        return 503, exc.param, exc.code, {"retry-after": "5"}
    if isinstance(exc, ServingError):
        return _find_serving_status(exc), exc.param, exc.code, {}
    if isinstance(exc, HTTPException):
        return exc.status_code, None, None, dict(exc.headers or {})
    if isinstance(exc, ClientDisconnect):
        return 400, None, None, {}
    if isinstance(exc, (ValueError, RequestValidationError)):
        return 400, _find_param(exc), None, {}
    return 500, None, None, {}


def _find_serving_status(exc: ServingError) -> int:
    statuses: dict[type[ServingError], int] = {
        InvalidRequestError: 400,
        ModelNotFoundError: 404,
        ModelInUseError: 409,
        DeadlineExceededError: 504,
    }
    # Ray gives what it brings from another process a class of its own, derived from the right one.
    return next((status for kind, status in statuses.items() if isinstance(exc, kind)), 500)


def _find_param(exc: BaseException) -> str | None:
    if not isinstance(exc, (ValidationError, RequestValidationError)) or not exc.errors():
        return None
    location = [str(part) for part in exc.errors()[0]["loc"]]
    if isinstance(exc, RequestValidationError) and location[0] in ("query", "path", "header"):
        del location[0]
    return ".".join(location)


def _unwrap(exc: BaseException) -> BaseException:
    """Take the exception that a replica raised out of what Ray wrapped round it."""
    while isinstance(exc, RayTaskError) and exc.cause is not None:
        exc = exc.cause
    return exc


def _rebuild_api_error(status: int, message: str, param: str | None, code: str | None) -> ApiError:
    return ApiError(status, message, param=param, code=code)
