"""Reports of a core are delivered to the requests that wait for them."""

import pytest

from serving.engine.messages import Progress, Report
from serving.engine.pending_requests import EngineLoad, PendingRequests
from serving.errors import InvalidRequestError, OverloadedError
from serving.settings import EngineSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
def requests() -> PendingRequests:
    return PendingRequests(EngineSettings(max_running_requests=1, max_queued_requests=1))


async def test_finished_request_is_not_cancelled(requests: PendingRequests) -> None:
    cancelled: list[str] = []
    with requests.register(10.0, cancelled.append) as request:
        requests.deliver(Report([Progress(request.id, [1], [], False)], 1, 0.5))
        requests.deliver(Report([Progress(request.id, [2], [], True)], 1, 0.5))
        assert requests.find_load() == EngineLoad(1, 0, 0.5)
        arrived = await request.receive()
        arrived += [] if len(arrived) == 2 else await request.receive()
    assert [progress and progress.tokens for progress in arrived] == [[1], [2]]
    assert cancelled == []
    assert requests.find_load() == EngineLoad(0, 0, 0.0)


async def test_request_closed_early_is_cancelled_and_forgotten(requests: PendingRequests) -> None:
    cancelled: list[str] = []
    with requests.register(10.0, cancelled.append) as request:
        assert requests.num_active == 1
    assert cancelled == [request.id]
    assert requests.num_active == 0
    requests.deliver(Report([Progress(request.id, [1], [], False)]))
    requests.deliver(None)
    with requests.register(10.0, cancelled.append) as other:
        requests.deliver(Report([Progress(other.id, [2], [], True)]))
        await other.receive()
    assert request.queue.empty()


async def test_end_of_process_is_reported_to_each_request(
    requests: PendingRequests,
) -> None:
    cancelled: list[str] = []
    with requests.register(10.0, cancelled.append) as request:
        requests.deliver(None)
        (progress,) = await request.receive()
    assert progress is not None
    assert progress.error == "its process has ended"
    assert cancelled == []


async def test_reached_deadline_is_reported(requests: PendingRequests) -> None:
    with requests.register(0.0, lambda _: None) as request:
        assert await request.receive() == [None]


async def test_capacity_limits_number_of_requests(requests: PendingRequests) -> None:
    requests.check_capacity(2)
    with pytest.raises(InvalidRequestError, match="^3 answers are wanted at once, "):
        requests.check_capacity(3)
    with requests.register(10.0, lambda _: None):
        requests.check_capacity(1)
        with pytest.raises(OverloadedError, match="^1 requests are running or waiting, ") as caught:
            requests.check_capacity(2)
        assert caught.value.retry_after_s == 1
