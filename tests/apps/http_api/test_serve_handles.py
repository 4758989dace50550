"""Requests when the generators behind a handle fail."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ray import serve
from ray.exceptions import ActorUnavailableError
from ray.serve._private.common import (
    DeploymentStatus,
    DeploymentStatusTrigger,
    ReplicaState,
)
from ray.serve.handle import DeploymentResponseGenerator
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatusOverview,
    ServeStatus,
)

from apps.http_api.deployment_health import DeploymentHealth, UnhealthyDeploymentError
from apps.http_api.serve_handles import RemoteText
from serving.errors import DeadlineExceededError
from serving.openai.chat import parse_chat_request
from serving.wire import AnswerOrigin, Piece, StreamItem, TextRequest, WholeAnswer

pytestmark = pytest.mark.anyio

DEAD = ActorUnavailableError("gone", b"0" * 16)
ONE: StreamItem = (Piece(0, "one"),), None
TWO: StreamItem = (Piece(0, "two"),), None
BODY = {"model": "a", "messages": [{"role": "user", "content": "fox"}], "seed": None}
REQUEST = parse_chat_request(BODY)
ANSWER = WholeAnswer(AnswerOrigin("a", None, None, None, "fp_0"), (Piece(0, "one"),), 3)


class Items(DeploymentResponseGenerator[Any]):
    """The response of a handle to a streamed call; raises the items that are exceptions."""

    def __init__(self, items: list[Any]) -> None:
        self._items = self._play(items)
        self.is_cancelled = False

    async def _play(self, items: list[Any]) -> AsyncIterator[Any]:
        for item in items:
            if isinstance(item, float):
                await asyncio.sleep(item)
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    async def __anext__(self) -> Any:
        return await anext(self._items)

    def cancel(self) -> None:
        self.is_cancelled = True


class Response:
    """The response of a handle to a call that is not streamed."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self.is_cancelled = False

    def __await__(self) -> Any:
        if isinstance(self._item, float):
            yield from asyncio.sleep(self._item).__await__()
        if isinstance(self._item, Exception):
            raise self._item
        return self._item

    def cancel(self) -> None:
        self.is_cancelled = True


class Handle:
    """A handle whose calls return the planned results in sequence."""

    app_name, deployment_name = "tuneserve", "Generator"

    def __init__(self, *plans: Any) -> None:
        self._plans = iter(plans)
        self.made: list[Any] = []
        self.sent: list[TextRequest] = []

    def options(self, **_: Any) -> "Handle":
        return self

    @property
    def stream(self) -> "Handle":
        return self

    answer = loaded_models = stream

    def remote(self, request: TextRequest) -> Any:
        self.sent.append(request)
        plan = next(self._plans)
        self.made.append(Items(plan) if isinstance(plan, list) else Response(plan))
        return self.made[-1]


def make_text(handle: Any, timeout_s: float = 5.0, *, log_texts: bool = False) -> RemoteText:
    return RemoteText(
        handle, models=None, timeout_s=timeout_s, may_sleep=False, log_texts=log_texts
    )


async def stream(handle: Handle, timeout_s: float = 5.0) -> list[Any]:
    text = make_text(handle, timeout_s)
    return [item async for item in text.stream(REQUEST, BODY, "id")]


async def test_stream_is_retried_before_first_item() -> None:
    handle = Handle([DEAD], [ONE, TWO])
    assert await stream(handle) == [ONE, TWO]
    assert all(made.is_cancelled for made in handle.made)


@pytest.mark.parametrize("plans", [[[ONE, DEAD], [ONE]], [[DEAD], [DEAD], [ONE]]])
async def test_stream_is_not_retried_after_first_item_or_second_failure(plans: list[Any]) -> None:
    handle = Handle(*plans)
    with pytest.raises(ActorUnavailableError):
        await stream(handle)
    assert len(handle.made) == len(plans) - 1


async def test_whole_answer_is_retried_once() -> None:
    handle = Handle(DEAD, ANSWER)
    assert await make_text(handle).answer(REQUEST, BODY, "id") == ANSWER
    with pytest.raises(ActorUnavailableError):
        await make_text(Handle(DEAD, DEAD)).answer(REQUEST, BODY, "id")


@pytest.mark.parametrize(
    ("log_texts", "logged_body"),
    [(False, None), (True, str(BODY))],
    ids=["without log_texts", "with log_texts"],
)
async def test_generator_receives_body_only_with_log_texts(
    log_texts: bool, logged_body: str | None
) -> None:
    handle = Handle(ANSWER, [ONE])
    text = make_text(handle, log_texts=log_texts)
    await text.answer(REQUEST, BODY, "id-1")
    async for _ in text.stream(REQUEST, BODY, "id-2"):
        pass
    assert handle.sent == [
        TextRequest("id-1", REQUEST, logged_body),
        TextRequest("id-2", REQUEST, logged_body),
    ]


async def test_requests_are_cancelled_at_deadline() -> None:
    for plan in ([30.0], [ONE, 30.0]):
        handle = Handle(plan)
        with pytest.raises(DeadlineExceededError, match=r"^no complete answer within 0\.05 s$"):
            await stream(handle, timeout_s=0.05)
        assert handle.made[0].is_cancelled
    handle = Handle(30.0)
    with pytest.raises(DeadlineExceededError):
        await make_text(handle, 0.05).answer(REQUEST, BODY, "id")
    assert handle.made[0].is_cancelled


async def test_cancelled_request_is_not_retried() -> None:
    handle = Handle(30.0)
    task = asyncio.create_task(make_text(handle).answer(REQUEST, BODY, "id"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [made.is_cancelled for made in handle.made] == [True]


def make_status(state: str, num_running: int) -> ServeStatus:
    overview = DeploymentStatusOverview(
        DeploymentStatus(state),
        DeploymentStatusTrigger.UNSPECIFIED,
        {ReplicaState.RUNNING: num_running} if num_running else {},
        "",
    )
    application = ApplicationStatusOverview(
        ApplicationStatus.RUNNING, "", 0.0, {"Generator": overview}
    )
    return ServeStatus({}, {"tuneserve": application})


@pytest.mark.parametrize(
    ("state", "num_running", "may_sleep", "is_healthy"),
    [
        ("HEALTHY", 1, False, True),
        ("UPDATING", 1, False, True),
        ("UPDATING", 0, False, False),
        ("HEALTHY", 0, True, True),
        ("UNHEALTHY", 1, False, False),
    ],
)
async def test_health_follows_deployment_status_and_is_cached(
    monkeypatch: pytest.MonkeyPatch, state: str, num_running: int, may_sleep: bool, is_healthy: bool
) -> None:
    """A health request to a generator would be queued behind its generation requests."""
    reads: list[int] = []

    def read() -> ServeStatus:
        reads.append(1)
        return make_status(state, num_running)

    monkeypatch.setattr(serve, "status", read)
    health = DeploymentHealth()
    checks = [health.check("tuneserve", "Generator", may_sleep=may_sleep) for _ in range(20)]
    found = await asyncio.gather(*checks, return_exceptions=True)
    assert {type(one) for one in found} == {type(None) if is_healthy else UnhealthyDeploymentError}
    assert len(reads) == 1, "the status was read once per client"
    with pytest.raises(UnhealthyDeploymentError, match=r"^Queue is not deployed"):
        await health.check("tuneserve", "Queue")


async def test_full_queue_does_not_make_generator_unhealthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "status", lambda: make_status("HEALTHY", 1))
    handle = Handle(30.0)
    async with asyncio.timeout(5):
        await make_text(handle).check()
    assert handle.made == []
