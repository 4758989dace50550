"""Exceptions of serving.

    ServingError
    ├── InvalidRequestError    400, also a ValueError: the request itself is invalid
    ├── ModelNotFoundError     404: no model or alias has this name
    ├── ModelInUseError        409: an alias points to the model, or the model is loaded or in use
    ├── TooManyAliasesError    409: the limit on aliases is reached
    ├── OverloadedError        429: no capacity now; retry after `retry_after_s` seconds
    │   └── NoRoomError        memory does not fit a model beside those in use
    ├── DeadlineExceededError  504: the answer took longer than the request timeout
    └── EngineDeadError        503: the model's engine cannot serve requests
        └── EngineLostError    its process ended, for any reason; a retry may succeed

The HTTP layer maps the exceptions to these statuses. All of them cross a Serve handle: attributes
that are not in `args` are pickled with the instance's `__dict__`.
"""


class ServingError(Exception):
    """Base class: a message for people, and `param` and `code` for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequestError(ServingError, ValueError):
    """The request is invalid; `param` names the faulty field, if there is one."""


class ModelNotFoundError(ServingError):
    """No model or alias has the requested name."""

    def __init__(
        self, message: str, *, param: str | None = "model", code: str | None = "model_not_found"
    ) -> None:
        super().__init__(message, param=param, code=code)


class ModelInUseError(ServingError):
    """A model cannot be deleted while it is in use; the message names the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_in_use")


class TooManyAliasesError(ServingError):
    """The limit on aliases is reached."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="name", code="too_many_aliases")


class OverloadedError(ServingError):
    """There is no capacity for the request; clients may retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_s = retry_after_s


class NoRoomError(OverloadedError):
    """A model is not loaded, and memory does not fit it in addition to the models in use."""


class DeadlineExceededError(ServingError):
    """The request ran past its deadline and was cancelled."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="deadline_exceeded")


class EngineDeadError(ServingError):
    """The engine of a model failed to load or has died."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_dead")


class EngineLostError(EngineDeadError):
    """The process of an engine ended, or could not start, before its model was loaded.

    The model is not necessarily the cause: the system kills processes when memory is short.
    """
