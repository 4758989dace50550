"""What can go wrong between a request and its answer.

    ServingError
    ├── InvalidRequestError    400, also a ValueError: the request itself is wrong
    ├── ModelNotFoundError     404: no model or alias has this name
    ├── ModelInUseError        409: something still points to the model, or has it loaded
    ├── TooManyAliasesError    409: there is no room for one more alias
    ├── OverloadedError        429: no room now; try again after `retry_after_s`
    ├── DeadlineExceededError  504: the answer took longer than a request may take
    └── EngineDeadError        503: the model's engine cannot answer at all
        └── EngineLostError    its process ended, for whatever cause; it may start another time

The numbers are for the HTTP room, which holds the one mapping to statuses. All of these cross a
Serve handle: what is not in `args` travels in the instance's dictionary, so they pickle whole.
"""


class ServingError(Exception):
    """Base of the tree: a message for people, and `param` and `code` for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequestError(ServingError, ValueError):
    """The request is wrong; `param` names the field where one is to blame."""


class ModelNotFoundError(ServingError):
    """Nothing has the name that was asked for."""

    def __init__(
        self, message: str, *, param: str | None = "model", code: str | None = "model_not_found"
    ) -> None:
        super().__init__(message, param=param, code=code)


class ModelInUseError(ServingError):
    """A model cannot be deleted while it is used; the message says by what."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_in_use")


class TooManyAliasesError(ServingError):
    """There can be no further alias."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="name", code="too_many_aliases")


class OverloadedError(ServingError):
    """There is no room for one more request; a client may retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_s = retry_after_s


class DeadlineExceededError(ServingError):
    """The request ran past its deadline and was cancelled."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="deadline_exceeded")


class EngineDeadError(ServingError):
    """The engine of a model failed to load, or has died and answers nothing any more."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_dead")


class EngineLostError(EngineDeadError):
    """The process of an engine ended or was not there before its model was loaded.

    The model need not be to blame: the system kills processes where memory is short.
    """
