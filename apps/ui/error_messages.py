"""Messages for visitors of the page about requests to the API that failed."""

from apps.client.errors import (
    ApiClientError,
    ApiTimeoutError,
    ApiUnreachableError,
    ConnectionLostError,
    InvalidUrlError,
    RequestRefusedError,
    UnexpectedResponseError,
)

_TEMPORARY_STATUSES = (429, 503)


def describe_error(exc: ApiClientError) -> str:
    """Describe why a request failed, in whole sentences."""
    match exc:
        case RequestRefusedError():
            return _describe_refusal(exc)
        case ApiTimeoutError():
            return "The API took too long to answer; please try again."
        case ConnectionLostError():
            return "The connection was lost during the answer."
        case ApiUnreachableError() | InvalidUrlError():
            return f"The API at {exc.url} does not answer; it may still be starting."
        case UnexpectedResponseError():
            return "The API returned an unexpected response."
    return str(exc)


def _describe_refusal(exc: RequestRefusedError) -> str:
    message = exc.api_message or f"The API returned status {exc.status}."
    if message.partition(" ")[0].isalpha():  # else it starts with a name, as of a setting or file
        message = message[:1].upper() + message[1:]
    if exc.status in _TEMPORARY_STATUSES:
        message = f"{message.rstrip('.')}. Please try again in a moment."
    return message
