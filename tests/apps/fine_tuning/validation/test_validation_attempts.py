"""The number of validation attempts, stored on disk."""

import json
import logging

import pytest

from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.validation.validation_attempts import AttemptCounter
from storage.layout import StorageLayout

TASK = Task("check_file", "file-rows")
PAUSES_S = (5.0, 30.0, 120.0, 600.0)


def read_stored(layout: StorageLayout) -> str:
    return (layout.file(TASK.subject) / "check_tries.json").read_text()


def write_stored(layout: StorageLayout, text: str) -> None:
    (layout.file(TASK.subject) / "check_tries.json").write_text(text)


@pytest.fixture(autouse=True)
def uploaded(file_id: str) -> None:
    assert file_id == TASK.subject


def test_retry_delays_grow_across_restarts(layout: StorageLayout) -> None:
    now = 1_000.0

    def restart() -> AttemptCounter:
        return AttemptCounter(layout, lambda: now)

    for pause_s in PAUSES_S:
        assert restart().is_due(TASK)
        assert restart().count(TASK)
        now += pause_s - 1
        assert not restart().is_due(TASK)
        now += 1
        assert restart().is_due(TASK)
    assert restart().count(TASK)
    assert not restart().count(TASK), "a sixth attempt was allowed"
    assert restart().is_due(TASK), "the task that has no attempts left is delayed"


def test_clock_set_back_does_not_delay_retry(layout: StorageLayout) -> None:
    AttemptCounter(layout, lambda: 1e9).count(TASK)
    assert AttemptCounter(layout, lambda: 1e6).is_due(TASK)


def test_withdrawn_attempt_does_not_count(layout: StorageLayout) -> None:
    attempts = AttemptCounter(layout, lambda: 0.0)
    for _ in range(2):
        attempts.count(TASK)
    attempts.withdraw(TASK)
    assert attempts.read(TASK).num_attempts == 1
    attempts.withdraw(TASK)
    assert list(layout.file(TASK.subject).glob("check_tries*")) == []


def test_attempt_count_has_format_version(layout: StorageLayout) -> None:
    AttemptCounter(layout, lambda: 7.0).count(TASK)
    stored = json.loads(read_stored(layout))
    assert stored == {"num_tries": 1, "last_try_at": 7.0, "format_version": "1.0"}


@pytest.mark.parametrize(
    "damage", ["", "[]", '{"num_tries": -1, "last_try_at": 0}', '{"format_version": "99.0"}']
)
def test_damaged_attempt_count_restarts_at_zero(
    layout: StorageLayout, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = AttemptCounter(layout, lambda: 0.0)
    write_stored(layout, damage)
    with caplog.at_level(logging.WARNING):
        assert attempts.is_due(TASK)
    assert "is counted from zero" in caplog.text
    assert attempts.count(TASK)
    assert attempts.read(TASK).num_attempts == 1
