"""Helpers of the tests of the fine-tuning queue."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest

from apps.fine_tuning.validation.row_thread import RowThread
from training.run.folder import RunFolder

FIGURES = {
    "step": 1.0,
    "loss": 2.5,
    "learning_rate": 1e-4,
    **dict.fromkeys(("num_steps", "epoch", "tokens_per_s", "elapsed_s", "remaining_s"), 1.0),
}
"""The metrics of one step."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def no_quick_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make tasks check all files, as if they were large."""
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)


@pytest.fixture
def rows() -> Iterator[RowThread]:
    rows = RowThread()
    yield rows
    rows.close()


def fill_disk(*_: Any, **__: Any) -> None:
    """Raise what a write to a full disk raises."""
    raise OSError(errno.ENOSPC, "No space left on device")


def list_messages(run: RunFolder) -> list[str]:
    return [event["message"] for event in run.events.read()]
