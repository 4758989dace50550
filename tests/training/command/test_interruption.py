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


def trigger_alarm() -> None:
    """Deliver the alarm that the timer would."""
    signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_pauses_and_second_interrupts(number: int) -> None:
    paused: list[str] = []
    with PauseOnInterrupt(lambda: paused.append("paused"), None) as pausing, pausing.limit():
        send(number)
        assert paused == ["paused"]
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert paused == ["paused"]


def test_pause_timeout_ends_body() -> None:
    def exceed_limit() -> None:
        send()
        time.sleep(LONG_S)

    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    with PauseOnInterrupt(lambda: None, 0.05) as pausing, pausing.limit():
        with pytest.raises(PauseTimeoutError):
            exceed_limit()
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert 0.05 <= time.monotonic() - began < LONG_S
    assert signal.getsignal(signal.SIGTERM) == before


def test_pause_timeout_applies_only_to_limited_part() -> None:
    """The cluster around it must start and end completely, however late the pause is."""
    with PauseOnInterrupt(lambda: None, LONG_S) as pausing:
        send()
        trigger_alarm()  # while the cluster starts
        with pytest.raises(PauseTimeoutError), pausing.limit():
            pytest.fail("the limited part begins after the time limit")
        trigger_alarm()  # while the cluster shuts down


def test_second_signal_cancels_time_limit() -> None:
    with PauseOnInterrupt(lambda: None, LONG_S) as pausing, pausing.limit():
        send()
        with pytest.raises(KeyboardInterrupt):
            send()
        trigger_alarm()  # while the end of the run is recorded


def test_alarm_repeats_and_is_cancelled_at_exit() -> None:
    """Python drops an exception of a handler that interrupts a finalizer."""
    with PauseOnInterrupt(lambda: None, LONG_S):
        send()
        assert signal.getitimer(signal.ITIMER_REAL)[1] > 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_install_restores_handlers_replaced_by_library() -> None:
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


def test_sigterm_raises_keyboard_interrupt() -> None:
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
