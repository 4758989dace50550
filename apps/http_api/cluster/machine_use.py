"""The processor, memory and disk of this machine: their present use, and that of the last minutes.

A thread reads the use of processor and memory every ten seconds, which takes less than a
millisecond.
"""

import shutil
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import psutil

INTERVAL_S = 10.0
HISTORY_S = 600.0
NUM_SAMPLES = int(HISTORY_S / INTERVAL_S)
_MIN_AGE_S = 1.0  # the use of the processor is measured between two readings


class UseSample(NamedTuple):
    """The shares of processor and memory that were in use at a moment, each from 0 to 1."""

    at: int
    """Unix seconds."""
    cpu: float
    memory: float


class MachineUse(NamedTuple):
    """The use of a machine; sizes in bytes."""

    num_cpus: float
    cpu_share: float
    memory_used: int
    memory_total: int
    disk_used: int
    disk_total: int

    def to_sample(self) -> UseSample:
        """Return the present time and the shares for the history."""
        memory = self.memory_used / self.memory_total if self.memory_total else 0.0
        return UseSample(int(time.time()), round(self.cpu_share, 3), round(memory, 3))


class _ProcessorMeter:
    """Measures the use of all processors between two calls, from whichever threads these are.

    `psutil.cpu_percent` measures since the last call of the same thread.
    """

    def __init__(self) -> None:
        self._measured_at = time.monotonic()
        self._busy_s, self._all_s = _read_processor_times()
        self._share = 0.0

    def measure(self) -> float:
        """Return the share that was in use since the last measurement, from 0 to 1.

        A measurement that is younger than `_MIN_AGE_S` is returned again.
        """
        now = time.monotonic()
        if now - self._measured_at < _MIN_AGE_S:
            return self._share
        self._measured_at = now
        busy_s, all_s = _read_processor_times()
        # The kernel counts in steps, and may begin again, as in a container that is restored.
        if all_s > self._all_s:
            share = (busy_s - self._busy_s) / (all_s - self._all_s)
            self._share = min(max(share, 0.0), 1.0)
        self._busy_s, self._all_s = busy_s, all_s
        return self._share


def _read_processor_times() -> tuple[float, float]:
    """Return the busy and the total processor seconds since the boot, on Linux."""
    times = psutil.cpu_times()
    all_s = sum(times) - times.guest - times.guest_nice  # contained in user and nice
    return all_s - times.idle - times.iowait, all_s


class MachineMonitor:
    """Measures this machine; safe to share between threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._history: deque[UseSample] = deque(maxlen=NUM_SAMPLES)
        self._read_meter, self._recorded_meter = _ProcessorMeter(), _ProcessorMeter()

    def start(self) -> None:
        """Record the history from now on, until the process ends."""
        threading.Thread(target=self._keep_recording, name="machine-use", daemon=True).start()

    def list_history(self) -> list[UseSample]:
        """Return the samples of the last minutes, one every `INTERVAL_S`, oldest first."""
        with self._lock:
            return list(self._history)

    def read(self) -> MachineUse:
        """Return the present use; that of the processor is the mean since the last reading."""
        return self._measure(self._read_meter)

    def record(self) -> None:
        """Add the use to the history; that of the processor is the mean since the last record."""
        sample = self._measure(self._recorded_meter).to_sample()
        with self._lock:
            self._history.append(sample)

    def _measure(self, meter: _ProcessorMeter) -> MachineUse:
        with self._lock:
            cpu_share = meter.measure()
        memory = psutil.virtual_memory()
        disk = shutil.disk_usage(self._root)
        return MachineUse(
            num_cpus=float(psutil.cpu_count() or 1),
            cpu_share=cpu_share,
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            disk_used=disk.used,
            disk_total=disk.total,
        )

    def _keep_recording(self) -> None:
        while True:
            time.sleep(INTERVAL_S)
            self.record()
