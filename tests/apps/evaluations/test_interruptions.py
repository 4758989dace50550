"""When interrupted evaluations are tried again."""

import pytest

from apps.evaluations.interruptions import MAX_ATTEMPTS, Interruptions


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("apps.evaluations.interruptions.time.monotonic", lambda: now[0])
    return now


def _find_delay(planned: Interruptions, clock: list[float]) -> float:
    begun = clock[0]
    while not planned.is_due("eval-1"):
        clock[0] += 1.0
    return clock[0] - begun


def test_delays_grow_to_a_limit(clock: list[float]) -> None:
    planned = Interruptions()
    delays = []
    for attempt in range(1, MAX_ATTEMPTS):
        assert planned.add("eval-1", 3) == attempt
        assert planned.is_due("eval-2")
        delays.append(_find_delay(planned, clock))
    assert delays == [30, 60, 120, 240, 480, 600, 600]


def test_attempts_before_the_last_progress_do_not_count(clock: list[float]) -> None:
    planned = Interruptions()
    nums_done = (0, 0, 5, 0, 5, 6)
    assert [planned.add("eval-1", num_done) for num_done in nums_done] == [1, 2, 1, 2, 3, 1]


def test_ended_evaluations_are_forgotten(clock: list[float]) -> None:
    planned = Interruptions()
    planned.add("eval-1", 0)
    planned.keep_only(["eval-2"])
    assert planned.is_due("eval-1")
    assert planned.add("eval-1", 0) == 1
