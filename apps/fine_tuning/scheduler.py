"""Scheduling of queued runs: they start in order, as far as the cluster has free resources."""

import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from apps.fine_tuning.cluster.job_runner import JobRunner
from apps.fine_tuning.index.run_index import describe_fault
from storage.durable import DamagedFileError
from storage.layout import StorageLayout
from system.fault_log import FaultLog
from training.preflight.resources import ResourceError, check_resources, find_shortage
from training.run import run_state
from training.run.folder import RunFolder
from training.spec import TrainingSpec

logger = logging.getLogger(__name__)

_MAX_REASON_CHARACTERS = 300


@dataclass
class _Pass:
    """What one pass over the queued runs has decided so far."""

    nodes: Sequence[Mapping[str, float]]
    specs: list[TrainingSpec]
    """Specs of the runs that compute."""
    num_computing: int
    num_waiting: int = 0


class RunScheduler:
    """Starts the Ray jobs of queued runs; `lock` is taken for every decision about a run."""

    def __init__(
        self,
        layout: StorageLayout,
        runner: JobRunner,
        lock: Lock,
        *,
        max_concurrent_runs: int,
        reserved_cpus: float,
        reserved_gpus: float,
        allowed_loops: Sequence[str] = (),
    ) -> None:
        self._layout = layout
        self._runner = runner
        self._lock = lock
        self._max_concurrent_runs = max_concurrent_runs
        self._reserved = reserved_cpus, reserved_gpus
        self._allowed_loops = allowed_loops
        self._faults, self._start_faults = FaultLog(logger), FaultLog(logger)

    def start_next(self, waiting: Sequence[RunFolder], computing: Sequence[RunFolder]) -> None:
        """Start the first queued runs, as many as may compute; record why the others wait.

        A run that could not start even if no other run computed does not delay the runs behind it.
        """
        specs = [spec for run in computing if isinstance(spec := _read_spec(run), TrainingSpec)]
        state = _Pass(self._runner.list_nodes(), specs, len(computing))
        self._faults.keep_only(run.path.name for run in waiting)
        self._start_faults.keep_only(f"run {run.path.name}" for run in waiting)
        for run in waiting:
            with self._faults.guard(run.path.name):
                self._start_or_wait(run, state)

    def _start_or_wait(self, run: RunFolder, state: _Pass) -> None:
        spec = _read_spec(run)
        if isinstance(spec, str):  # perhaps written by another version
            with self._lock:
                record_waiting_reason(run, f"its settings cannot be read: {spec}")
            return
        if spec.loop is not None and spec.loop not in self._allowed_loops:
            with self._lock:
                record_waiting_reason(run, f"its loop {spec.loop!r} is no longer allowed")
            return
        try:
            check_resources(spec, state.nodes, *self._reserved)
        except ResourceError as exc:  # a node has left, or has not joined yet
            with self._lock:
                record_waiting_reason(run, f"the cluster has too few resources at present: {exc}")
            return
        reason: str | None = None
        if state.num_waiting or state.num_computing >= self._max_concurrent_runs:
            reason = f"number {state.num_waiting + 1} in the queue"
        else:
            reason = find_shortage(spec, state.specs, state.nodes, *self._reserved)
        with self._lock:
            if reason is not None:
                state.num_waiting += 1  # a smaller run must not delay it forever
                record_waiting_reason(run, reason)
            elif self._start(run):
                state.num_computing += 1
                state.specs.append(spec)

    def _start(self, run: RunFolder) -> bool:
        """Start a run's Ray job; the record is written first, and a job id is started only once.

        Returns whether the run has a job now, or gets one as soon as the cluster accepts it.
        """
        record = run.read_record()
        if record.is_final or record.status == "paused" or run.is_cancel_requested:
            return False
        if record.writer == "queue":
            record = run_state.assign_job(run)
        assert record.job_id is not None
        command = [
            sys.executable,
            "-m",
            "apps.fine_tuning.cluster.job_main",
            "--storage",
            str(self._layout.root),
        ]
        try:
            self._runner.start(record.job_id, shlex.join([*command, record.id, record.job_id]))
        except (RuntimeError, OSError) as exc:  # raised by the cluster; retried in the next pass
            self._start_faults.report(f"run {record.id}", f"could not be started: {exc}")
            message = f"The cluster cannot start it at present, trying again: {exc}"
            run.events.add_once(message, level="warn")
        else:
            self._start_faults.clear(f"run {record.id}")
            logger.info("started run %s as job %s", record.id, record.job_id)
        return True


def record_waiting_reason(run: RunFolder, reason: str) -> None:
    """Record what a queued run waits for; the caller may write the run's record."""
    record = run.read_record()
    is_waiting = record.writer == "queue" and record.status in ("queued", "validating_files")
    if is_waiting and record.waiting_for != reason:
        run.update_record(waiting_for=reason)


def _read_spec(run: RunFolder) -> TrainingSpec | str:
    """Read the settings of a run; return the reason if they cannot be read."""
    try:
        return run.read_spec()
    except (DamagedFileError, OSError) as exc:
        reason = describe_fault(exc)
        return " ".join(reason.split())[:_MAX_REASON_CHARACTERS]
