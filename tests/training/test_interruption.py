import os
import signal
import time

import pytest

from training.interruption import PauseOnInterrupt, PauseTimeoutError

TIMEOUT_S = 0.05
LONG_S = 5.0


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_pauses_and_the_second_stops(number: int) -> None:
    paused: list[str] = []
    with PauseOnInterrupt(lambda: paused.append("paused"), None) as pausing, pausing.limit():
        send(number)
        assert paused == ["paused"]
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert paused == ["paused"]


def test_a_pause_that_takes_too_long_ends_the_body() -> None:
    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    with PauseOnInterrupt(lambda: None, TIMEOUT_S) as pausing, pausing.limit():
        send()
        with pytest.raises(PauseTimeoutError):
            time.sleep(LONG_S)
    assert TIMEOUT_S <= time.monotonic() - began < LONG_S
    assert signal.getsignal(signal.SIGTERM) == before


def test_only_the_limited_part_is_ended() -> None:
    """The cluster around it must start and end whole, however late the pause is."""
    with PauseOnInterrupt(lambda: None, TIMEOUT_S) as pausing:
        send()
        time.sleep(2 * TIMEOUT_S)  # as the cluster starts
        with pytest.raises(PauseTimeoutError), pausing.limit():
            pytest.fail("the limited part begins after the time limit")
        time.sleep(2 * TIMEOUT_S)
    with PauseOnInterrupt(lambda: None, TIMEOUT_S) as pausing:
        with pausing.limit():
            send()
        time.sleep(2 * TIMEOUT_S)  # as the cluster ends


def test_a_second_signal_lifts_the_time_limit() -> None:
    with PauseOnInterrupt(lambda: None, TIMEOUT_S) as pausing, pausing.limit():
        send()
        with pytest.raises(KeyboardInterrupt):
            send()
        time.sleep(2 * TIMEOUT_S)  # as what was stopped is recorded


def test_no_alarm_is_left_behind() -> None:
    with PauseOnInterrupt(lambda: None, LONG_S):
        send()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
