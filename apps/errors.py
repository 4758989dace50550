"""Exceptions of the API, and their mapping to HTTP statuses, which is defined only here.

    Exception
    ├── ApiError                   a refusal with its HTTP status
    │   └── InvalidInputError      400: the client's input is invalid
    ├── ServingError               the generator's refusals, shown in serving/errors.py
    ├── RequestValidationError     400: FastAPI's, for query parameters and headers
    └── anything else              500: a bug; logged with its traceback under a request id

A `ValueError` is in the last group, since most of them come from bugs. Only code that validates
client input may turn one into an `InvalidInputError`, with `invalid_input`.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from apps.access.exchange import find_exchange
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    OverloadedError,
    ServingError,
    TooManyAliasesError,
)
from storage.layout import new_id
from system.machine_faults import is_out_of_space
from training.settings.fault_messages import describe_faults
from training.spec import describe_validation_error

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
MAX_MESSAGE_CHARACTERS = 2_000
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class ErrorObject(TypedDict):
    """An error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The body of every error response."""

    error: ErrorObject


class ApiError(Exception):
    """A refusal with its HTTP status; `param` names the field that is at fault."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, since exceptions are sent between replicas."""
        return _rebuild_api_error, (self.status, self.message, self.param, self.code)


class InvalidInputError(ApiError):
    """The client's input is invalid; the message quotes it and states what was expected."""

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = "invalid_value"
    ) -> None:
        super().__init__(400, message, param=param, code=code)

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling, since exceptions are sent between replicas."""
        return _rebuild_invalid_input, (self.message, self.param, self.code)


@contextmanager
def invalid_input(
    param: str | None = None,
    only: type[ValueError] | tuple[type[ValueError], ...] = ValueError,
) -> Iterator[None]:
    """Turn a `ValueError` of the body into an `InvalidInputError`.

    The body should be only the call that validates client input. If that call does more, `only`
    names the exceptions that are about the input. `param` names the field at fault if pydantic does
    not.
    """
    try:
        yield
    except ServingError:  # has its own status; one subclass is a ValueError too
        raise
    except ValidationError as exc:
        message = describe_validation_error(exc)
        raise InvalidInputError(message, param=_find_param(exc) or param) from exc
    except only as exc:
        raise InvalidInputError(str(exc), param=param) from exc


FULL_DISK = "the server's disk has no room for it"


@contextmanager
def refuse_full_disk() -> Iterator[None]:
    """Raise `ApiError` 507 if the disk has no room for what the body writes.

    Use it where the error crosses from one replica to another, or has to be distinguished from
    other `OSError`s.
    """
    try:
        yield
    except OSError as exc:
        if is_out_of_space(exc):
            raise ApiError(507, FULL_DISK, code="disk_full") from exc
        raise


_EXPECTED = (
    ApiError,
    ServingError,
    HTTPException,
    ClientDisconnect,
    RequestValidationError,
    BackPressureError,
    DeploymentUnavailableError,
    RayActorError,
    RayTaskError,
    OSError,
)


def not_found(kind: str, identifier: str) -> ApiError:
    """Return the 404 error for an object that does not exist."""
    return ApiError(404, f"there is no {kind} {identifier!r}", param="id", code="not_found")


def to_response(exc: BaseException, request_id: str | None = None) -> JSONResponse:
    """Turn any exception into OpenAI's error body with the right status."""
    exc = _unwrap(exc)
    status, param, code, headers = _classify(exc)
    message = str(exc)
    if isinstance(exc, HTTPException):
        message = exc.detail
    elif isinstance(exc, ClientDisconnect):
        message = "the connection was closed before the whole request was received"
    elif isinstance(exc, RequestValidationError):
        message = describe_faults(exc.errors())
    elif isinstance(exc, (RayActorError, DeploymentUnavailableError)):
        message = "the process that worked on this has ended; another takes its place, try again"
    elif is_out_of_space(exc):
        message = FULL_DISK
    if status == 500:
        request_id = request_id or new_id("req")
        logger.error("request %s failed", request_id, exc_info=exc)
        if not isinstance(exc, ApiError):
            message = f"internal error; the server's log has the details under request {request_id}"
        headers = {REQUEST_ID_HEADER: request_id}
    return JSONResponse(error_body(status, message, param, code), status, headers)


def is_expected(exc: BaseException) -> bool:
    """Return whether an exception is a refusal or an outage with its own status, not a bug."""
    return _classify(_unwrap(exc))[0] != 500


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> ErrorBody:
    """Build the body of a response to a request that failed."""
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[: MAX_MESSAGE_CHARACTERS - 3]}..."
    # A lone surrogate from a client's input cannot be encoded in the response.
    message = message.encode(errors="backslashreplace").decode()
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def install_error_handlers(app: FastAPI) -> None:
    """Turn every exception that leaves a route into a response with an error body.

    Expected exceptions get their own handlers: Starlette re-raises an exception that only the
    handler of `Exception` accepts, and Serve logs that as a failure of the application, in a
    hundred lines.
    """

    async def answer(request: Request, exc: Exception) -> JSONResponse:
        return to_response(exc, _read_request_id(request))

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
    if isinstance(exc, RequestValidationError):
        return 400, _find_param(exc), None, {}
    if is_out_of_space(exc):
        return 507, None, "disk_full", {}
    return 500, None, None, {}


def _find_serving_status(exc: ServingError) -> int:
    statuses: dict[type[ServingError], int] = {
        InvalidRequestError: 400,
        ModelNotFoundError: 404,
        ModelInUseError: 409,
        TooManyAliasesError: 409,
        DeadlineExceededError: 504,
    }
    # An exception from another process has a class that Ray derives from the original one.
    return next((status for kind, status in statuses.items() if isinstance(exc, kind)), 500)


def _find_param(exc: ValidationError | RequestValidationError) -> str | None:
    """Return the first field that is at fault; None if the fault is in the request as a whole."""
    faults = exc.errors()
    location = [str(part) for part in faults[0]["loc"]] if faults else []
    if isinstance(exc, RequestValidationError) and location[:1] in (
        ["query"],
        ["path"],
        ["header"],
    ):
        del location[0]
    return ".".join(location) or None


def _read_request_id(request: Request) -> str | None:
    """Return a request's id as logged and audited, or else the id that the client sent."""
    if (exchange := find_exchange(request.scope)) is not None:
        return exchange.request_id
    request_id = request.headers.get(REQUEST_ID_HEADER, "")
    return request_id if _REQUEST_ID.fullmatch(request_id) else None


def _unwrap(exc: BaseException) -> BaseException:
    """Unwrap the exception that a replica raised from Ray's `RayTaskError`."""
    while isinstance(exc, RayTaskError) and exc.cause is not None:
        exc = exc.cause
    return exc


def _rebuild_api_error(status: int, message: str, param: str | None, code: str | None) -> ApiError:
    return ApiError(status, message, param=param, code=code)


def _rebuild_invalid_input(message: str, param: str | None, code: str | None) -> InvalidInputError:
    return InvalidInputError(message, param=param, code=code)
