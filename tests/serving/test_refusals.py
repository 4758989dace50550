"""Expected errors cross a Serve handle as values."""

import asyncio
import pickle

import pytest

from serving.errors import InvalidRequestError, OverloadedError, ServingError
from serving.refusals import Refusal, return_refusals, unwrap


def test_expected_error_is_returned_and_bug_is_raised() -> None:
    @return_refusals(ServingError)
    async def fail(failure: Exception | None) -> int:
        if failure is not None:
            raise failure
        return 1

    assert asyncio.run(fail(None)) == 1
    refused = asyncio.run(fail(InvalidRequestError("too long", param="messages")))
    with pytest.raises(InvalidRequestError, match="^too long$") as caught:
        unwrap(pickle.loads(pickle.dumps(refused)))
    assert caught.value.param == "messages"
    with pytest.raises(ValueError, match="^a bug$"):
        asyncio.run(fail(ValueError("a bug")))


def test_refusal_keeps_error_attributes_without_traceback() -> None:
    @return_refusals(ServingError)
    async def fail() -> int:
        raise OverloadedError("full", retry_after_s=7) from OSError("the cause")

    refusal = pickle.loads(pickle.dumps(asyncio.run(fail())))
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error, OverloadedError)
    assert refusal.error.retry_after_s == 7
    assert refusal.error.__cause__ is None
    assert refusal.error.__traceback__ is None
