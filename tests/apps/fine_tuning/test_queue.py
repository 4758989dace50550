"""The queue as a whole: slow requests do not block others."""

import threading
from typing import Any

import anyio
import pytest

from apps.errors import ApiError
from apps.fine_tuning.queue import RunQueue
from tests.apps.conftest import create_run

pytestmark = pytest.mark.anyio


async def test_slow_job_creations_do_not_delay_reconcile_pass_or_cancellation(
    queue: RunQueue, file_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await create_run(queue, file_id)
    may_continue = threading.Event()

    def wait(*_: Any) -> None:
        may_continue.wait(30)
        raise ApiError(400, "not today")

    async def create() -> None:
        with pytest.raises(ApiError, match="^not today$"):
            await create_run(queue, file_id)

    monkeypatch.setattr("apps.fine_tuning.submission.prepare_rows", wait)
    async with anyio.create_task_group() as creations:
        for _ in range(50):
            creations.start_soon(create)
        await anyio.wait_all_tasks_blocked()
        try:
            with anyio.fail_after(20):
                await queue.reconcile()
                await queue.cancel(run.path.name)
        finally:
            may_continue.set()
