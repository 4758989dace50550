import pickle
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    ServingError,
)

_ERRORS = [
    ServingError("a", param="p", code="c"),
    InvalidRequestError("a", param="messages", code="invalid_value"),
    ModelNotFoundError("a"),
    OverloadedError("a", retry_after_s=7),
    DeadlineExceededError("a"),
    EngineDeadError("a"),
]


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling_and_ray_task_error(error: ServingError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == error.message == "a"

    wrap: Any = RayTaskError
    raised = wrap("chat", "traceback", again).as_instanceof_cause()
    assert vars(raised.cause) == vars(error)
    assert isinstance(raised, type(error))


def test_invalid_request_error_is_value_error() -> None:
    assert isinstance(InvalidRequestError("a"), ValueError)
