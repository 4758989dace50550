"""The end of a run, successful or not, and its restart after its process was lost."""

import csv
import io
import logging
import time
from typing import Any

from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import has_published, name_model
from serving.store.model_names import LATEST_ALIAS
from serving.store.model_store import ModelStore
from storage.durable import DamagedFileError
from storage.layout import StorageLayout
from training import launch
from training.run.event_codes import EventCode
from training.run.folder import EventLevel, RunError, RunFolder, RunStatus

logger = logging.getLogger(__name__)

# Metrics and their columns: OpenAI's names where its result files have the metric, else ours.
_COLUMNS = {
    "step": "step",
    "loss": "train_loss",
    "eval_loss": "valid_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
    "epoch": "epoch",
    "trained_tokens": "trained_tokens",
    "tokens_per_s": "tokens_per_s",
    "elapsed_s": "elapsed_s",
}


def finish_published(layout: StorageLayout, run: RunFolder) -> None:
    """Mark a run whose model is published as succeeded, and point `latest` to the model.

    Can be repeated after an interruption.
    """
    model_id = name_model(run.read_record())
    ModelStore(layout).point_alias(LATEST_ALIAS, model_id)
    tell_once(run, f"Published as {model_id}, and {LATEST_ALIAS!r} points to it")
    run.update_record(result_file=write_results(layout, run))
    launch.succeed_run(run, model_id)


def end_run(
    layout: StorageLayout,
    run: RunFolder,
    status: RunStatus,
    message: str,
    error: RunError | None = None,
) -> None:
    """End a run as failed or cancelled.

    The event is written before the record, since an event stream ends once the record is final.
    """
    result_file = write_results(layout, run)
    tell_once(run, message, level="error" if error else "info")
    run.update_record(
        status=status,
        finished_at=int(time.time()),
        writer="queue",
        waiting_for=None,
        error=error.model_dump() if error else None,
        result_file=result_file,
    )


def settle_lost(layout: StorageLayout, run: RunFolder, reason: str, max_restarts: int) -> None:
    """Decide how to end or continue a run whose process ended without recording its state.

    `reason` is why the process ended, as far as known.
    """
    record = run.read_record()
    if record.is_final:  # recorded just now
        return
    try:
        is_published = has_published(ModelStore(layout), record.id, name_model(record))
    except DamagedFileError as exc:
        if isinstance(exc.__cause__, OSError):  # may be temporary
            raise
        message = f"model {name_model(record)!r} is there, and its lineage cannot be read: "
        error = RunError(code="lineage_unreadable", message=f"{message}{exc.reason}")
        end_run(layout, run, "failed", f"The fine-tune failed: {error.message}", error)
        return
    if is_published:
        # Its process was killed between publishing the model and recording it.
        finish_published(layout, run)
    elif run.is_cancel_requested:
        end_run(layout, run, "cancelled", "The fine-tune was cancelled")
    elif record.status == "paused":  # recorded just now
        return
    elif run.is_pause_requested:
        tell_once(run, "Paused; its process had ended before it could save a checkpoint")
        run.mark_paused(writer="queue")
    else:
        _put_back(layout, run, reason, max_restarts)


def _put_back(layout: StorageLayout, run: RunFolder, reason: str, max_restarts: int) -> None:
    """Queue a lost run again, or fail it after too many losses without a completed step."""
    record = run.read_record()
    last = run.read_last_metrics()
    step = int(last["step"]) if last else 0
    num_lost = 1 if step > record.lost_step else record.num_lost + 1
    if num_lost > max_restarts:
        message = f"{reason}; it did so {num_lost} times without getting on by a step"
        error = RunError(code="interrupted", message=message)
        end_run(layout, run, "failed", f"The fine-tune failed: {message}", error)
        return
    tell_once(
        run,
        f"Interrupted: {reason}. It goes on from its last checkpoint",
        level="warn",
        code="queued",
        data={"step": step, "num_lost": num_lost, "max_restarts": max_restarts},
    )
    run.update_record(
        status="queued", writer="queue", num_lost=num_lost, lost_step=max(step, record.lost_step)
    )


def tell_once(
    run: RunFolder,
    message: str,
    level: EventLevel = "info",
    *,
    code: EventCode | None = None,
    data: dict[str, Any] | None = None,
) -> None:
    """Add an event unless it equals the last one, so that an interrupted call can be repeated."""
    told = run.read_events()
    if not told or (told[-1]["message"], told[-1]["data"]) != (message, data or {}):
        run.add_event(message, level=level, code=code, data=data)


def write_results(layout: StorageLayout, run: RunFolder) -> str | None:
    """Store the metrics of a run's steps as a CSV file; return its id, None without metrics.

    Repeating the call after an interruption writes the same file. Returns None too if the disk has
    no room for the file, which does not prevent the run from ending.
    """
    metrics = run.read_metrics()
    if not metrics:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS.values())
    writer.writerows([line.get(name, "") for name in _COLUMNS] for line in metrics)
    file_id = f"file-{run.path.name}"
    try:
        FileStore(layout).add(
            file_id, text.getvalue().encode(), "step_metrics.csv", "fine-tune-results"
        )
    except OSError:
        logger.exception("the results of run %s cannot be written", run.path.name)
        return None
    return file_id
