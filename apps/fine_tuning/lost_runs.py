"""Runs that lost their process: they end as it would have recorded, or are queued again."""

from apps.fine_tuning.index.run_lookup import has_published, name_model
from apps.fine_tuning.run_endings import end_run, finish_published
from apps.fine_tuning.run_processes import RunProcesses
from serving.store.model_store import ModelStore
from storage.durable import DamagedFileError
from storage.layout import StorageLayout
from training.run import run_state
from training.run.folder import RunFolder
from training.run.run_record import RunError


class LostRuns:
    """Ends or requeues runs whose process ended without recording how.

    A run is queued again at most `max_restarts` times without a completed step in between. The
    caller holds the lock under which the queue decides about runs.
    """

    def __init__(self, layout: StorageLayout, processes: RunProcesses, max_restarts: int) -> None:
        self._layout = layout
        self._processes = processes
        self._max_restarts = max_restarts

    def end_or_requeue(self, run: RunFolder) -> None:
        """End a run or queue it again, according to what its process has published."""
        record = run.read_record()
        if record.writer == "queue" and not run.is_cancel_requested:
            return  # it has ended meanwhile and was queued again
        reason = self._processes.describe_end(record.job_id or record.id)
        record = run.read_record()
        if record.is_final:  # recorded just now
            return
        try:
            is_published = has_published(ModelStore(self._layout), record.id, name_model(record))
        except DamagedFileError as exc:
            if isinstance(exc.__cause__, OSError):  # may be temporary
                raise
            message = f"model {name_model(record)!r} exists, but its lineage cannot be read: "
            error = RunError(code="lineage_unreadable", message=f"{message}{exc.reason}")
            end_run(self._layout, run, f"The fine-tune failed: {error.message}", error)
            return
        if is_published:
            # Its process was killed between publishing the model and recording it.
            finish_published(self._layout, run)
        elif run.is_cancel_requested:
            end_run(self._layout, run, "The fine-tune was cancelled")
        elif record.status == "paused":  # recorded just now
            return
        elif run.is_pause_requested:
            run.events.add_once("Paused; its process had ended before it could save a checkpoint")
            run_state.pause(run, writer="queue")
        else:
            self._requeue(run, reason)

    def _requeue(self, run: RunFolder, reason: str) -> None:
        """Queue a lost run again, or fail it after too many losses without a completed step."""
        record = run.read_record()
        last = run.metrics.read_last()
        step = int(last["step"]) if last else 0
        num_lost = 1 if step > record.lost_step else record.num_lost + 1
        if num_lost > self._max_restarts:
            message = f"{reason}; it did so {num_lost} times without completing a step"
            error = RunError(code="interrupted", message=message)
            end_run(self._layout, run, f"The fine-tune failed: {message}", error)
            return
        run.events.add_once(
            f"Interrupted: {reason}. It resumes from its last checkpoint",
            level="warn",
            code="queued",
            data={"step": step, "num_lost": num_lost, "max_restarts": self._max_restarts},
        )
        run_state.requeue(run, num_lost=num_lost, lost_step=max(step, record.lost_step))
