"""Exceptions of the client; `apps.client.connection` translates those of httpx.

ApiClientError
├── InvalidUrlError            the URL of the API cannot be used
├── InvalidIdError             an id that cannot be part of a path
├── ApiUnavailableError        the request may succeed later
│   ├── ApiUnreachableError    no connection; the reason is that of the operating system
│   ├── ApiTimeoutError        no response in time
│   └── ConnectionLostError    the connection was lost in the middle of a response
├── RequestRefusedError        the API refused the request, with a status
├── UnexpectedResponseError    the response is not one of this API
└── AnswerFailedError          the API reported an error in the middle of a streamed answer
"""

from collections.abc import Mapping


class ApiClientError(Exception):
    """A request to the API failed."""


class InvalidUrlError(ApiClientError):
    """The URL of the API cannot be used; the message is the reason."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(reason)
        self.url = url


class InvalidIdError(ApiClientError):
    """An id that cannot be part of a path."""

    def __init__(self, identifier: str) -> None:
        super().__init__(f"{identifier!r} is not an id")
        self.identifier = identifier


class ApiUnavailableError(ApiClientError):
    """The API did not respond; the same request may succeed later. The message is the reason."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(reason)
        self.url = url


class ApiUnreachableError(ApiUnavailableError):
    """There is no connection to the API, as for a failure of DNS or TLS."""


class ApiTimeoutError(ApiUnavailableError):
    """The API did not respond in time."""


class ConnectionLostError(ApiUnavailableError):
    """The connection was lost in the middle of a response."""


class RequestRefusedError(ApiClientError):
    """The API refused a request.

    `api_message`, `code` and `param`, the field at fault, are those of the error body, if any.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        api_message: str | None = None,
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(api_message or f"the answer was {status} {reason}")
        self.status, self.api_message = status, api_message
        self.code, self.param = code, param


class UnexpectedResponseError(ApiClientError):
    """The response is not one of this API; the message describes the difference."""


class AnswerFailedError(ApiClientError):
    """The API reported an error in the middle of a streamed answer; the message is the API's."""


def read_error_body(body: object) -> tuple[str | None, str | None]:
    """Return message and code of an error body; None for what it does not have."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping) or "message" not in error:
        return None, None
    code = error.get("code")
    return str(error["message"]), code if isinstance(code, str) else None


def read_error_param(body: object) -> str | None:
    """Return the field at fault that an error body names; None if it names none."""
    error = body.get("error") if isinstance(body, Mapping) else None
    param = error.get("param") if isinstance(error, Mapping) else None
    return param if isinstance(param, str) else None
