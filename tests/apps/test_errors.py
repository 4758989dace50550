"""The mapping of exceptions to responses."""

import logging
import pickle
from typing import Any, cast

import httpx
import pytest
from pydantic import BaseModel, ValidationError
from ray.exceptions import RayTaskError

from apps.deployments import FineTuningQueueReplica
from apps.errors import ApiError, InvalidInputError, invalid_input, to_response
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from apps.http_api.serve_handles import QueueClient
from serving.errors import InvalidRequestError
from serving.refusals import Refusal
from tests.apps.conftest import Echo

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Number(BaseModel):
    value: int


def fail_validation() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Number.model_validate({"value": "x"})
    return caught.value


def wrap_as_ray_error(failure: Exception) -> Exception:
    wrap: Any = RayTaskError
    wrapped: Exception = wrap("answer", "a traceback", failure).as_instanceof_cause()
    return wrapped


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize(
    "failure", [ValueError("value must be >0, got 0"), UnicodeError("x"), fail_validation()]
)
async def test_internal_error_gets_500_without_its_message(
    services: Services, caplog: pytest.LogCaptureFixture, failure: Exception, is_remote: bool
) -> None:
    cast(Echo, services.text).failure = wrap_as_ray_error(failure) if is_remote else failure
    transport = httpx.ASGITransport(build_http(services, None), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        body = {"model": "tiny", "prompt": "x"}
        headers = {"x-request-id": "req-7"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 500
    assert str(failure) not in answer.text
    assert "req-7" in answer.json()["error"]["message"]
    assert answer.headers["x-request-id"] == "req-7"
    assert "request req-7 failed" in caplog.text


@pytest.mark.parametrize("headers", [{}, {"x-request-id": "a:b"}, {"x-request-id": "no name"}])
async def test_failed_request_has_same_id_in_response_and_log(
    services: Services, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    caplog.set_level(logging.INFO, logger="apps")
    cast(Echo, services.text).failure = ValueError("inside")
    transport = httpx.ASGITransport(build_http(services, None), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        body = {"model": "tiny", "prompt": "x"}
        answer = await client.post("/v1/completions", json=body, headers=headers)
    request_id = answer.headers["x-request-id"]
    assert answer.json()["error"]["message"].endswith(f"under request {request_id}")
    assert f"request {request_id} failed" in caplog.text
    assert f"id={request_id}" in caplog.text


async def test_error_without_request_id_gets_one(caplog: pytest.LogCaptureFixture) -> None:
    answer = to_response(ValueError("inside"))
    request_id = answer.headers["x-request-id"]
    assert f"request {request_id} failed" in caplog.text
    assert request_id.encode() in answer.body


def test_validation_errors_become_invalid_input_errors() -> None:
    with pytest.raises(InvalidInputError, match=r"^too long") as caught, invalid_input("name"):
        raise ValueError("too long")
    assert (caught.value.status, caught.value.param) == (400, "name")
    with pytest.raises(InvalidInputError, match=r"^value is") as caught, invalid_input():
        Number.model_validate({"value": "x"})
    assert caught.value.param == "value"
    with pytest.raises(UnicodeError), invalid_input(only=ValidationError):
        raise UnicodeError
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.param, str(again)) == (InvalidInputError, "value", str(caught.value))


async def test_error_messages_are_bounded_and_encodable() -> None:
    body = to_response(ApiError(400, "\ud800" * 10_000)).body
    assert len(body) < 30_000


class _RefusingQueue:
    """A queue that rejects every job with an exception."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        raise self._failure


class _Handle:
    """A Serve handle of the queue that supports one call, `create`."""

    def __init__(self, replica: FineTuningQueueReplica) -> None:
        self.create = self
        self._replica = replica

    async def remote(self, body: dict[str, Any]) -> Any:
        result = await self._replica.create(body)
        return pickle.loads(pickle.dumps(result))


@pytest.mark.parametrize(
    "refusal",
    [InvalidInputError("bad row", param="training_file"), InvalidRequestError("bad", param="x")],
)
async def test_queue_returns_expected_errors_and_raises_bugs(
    refusal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    replica = FineTuningQueueReplica.__new__(FineTuningQueueReplica)
    replica._queue = cast(Any, _RefusingQueue(refusal))
    assert isinstance(await replica.create({}), Refusal)
    with pytest.raises(type(refusal)) as caught:
        await QueueClient(cast(Any, _Handle(replica))).create({})
    assert (str(caught.value), caught.value.param) == (str(refusal), refusal.param)
    replica._queue = cast(Any, _RefusingQueue(KeyError("a bug")))
    with pytest.raises(KeyError):
        await replica.create({})
