import os
import signal
import subprocess
import sys
import time

import pytest

from training.command.interruption import PauseOnInterrupt, PauseTimeoutError, interrupt_on_sigterm

LONG_S = 60.0


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def let_time_pass() -> None:
    """Deliver the alarm that the timer would."""
    signal.raise_signal(signal.SIGALRM)


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
    def be_slow() -> None:
        send()
        time.sleep(LONG_S)

    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    with PauseOnInterrupt(lambda: None, 0.05) as pausing, pausing.limit():
        with pytest.raises(PauseTimeoutError):
            be_slow()
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert 0.05 <= time.monotonic() - began < LONG_S
    assert signal.getsignal(signal.SIGTERM) == before


def test_only_the_limited_part_is_ended() -> None:
    """The cluster around it must start and end completely, however late the pause is."""
    with PauseOnInterrupt(lambda: None, LONG_S) as pausing:
        send()
        let_time_pass()  # while the cluster starts
        with pytest.raises(PauseTimeoutError), pausing.limit():
            pytest.fail("the limited part begins after the time limit")
        let_time_pass()  # while the cluster shuts down


def test_a_second_signal_lifts_the_time_limit() -> None:
    with PauseOnInterrupt(lambda: None, LONG_S) as pausing, pausing.limit():
        send()
        with pytest.raises(KeyboardInterrupt):
            send()
        let_time_pass()  # while the end of the run is recorded


def test_the_alarm_repeats_and_none_is_left_behind() -> None:
    """Python drops an exception of a handler that interrupts a finalizer."""
    with PauseOnInterrupt(lambda: None, LONG_S):
        send()
        assert signal.getitimer(signal.ITIMER_REAL)[1] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_handlers_that_a_library_replaced_are_installed_again() -> None:
    """Ray exits at SIGTERM once it is initialised, without a checkpoint."""
    paused: list[str] = []
    with PauseOnInterrupt(lambda: paused.append("paused"), None) as pausing:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        pausing.install()
        send()
        assert paused == ["paused"]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        pausing.install()
        with pytest.raises(KeyboardInterrupt):
            send()


def test_sigterm_interrupts_what_cannot_be_paused() -> None:
    code = """
import signal
from training.command.interruption import interrupt_on_sigterm
with interrupt_on_sigterm():
    try:
        print("ready", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print("interrupted")
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == "interrupted\n"
        assert process.wait(10) == 0
    before = signal.getsignal(signal.SIGTERM)
    with interrupt_on_sigterm():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) == before
