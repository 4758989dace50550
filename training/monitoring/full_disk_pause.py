"""Pausing a run on a full disk until there is space, or until the user resumes it.

The last complete checkpoint is untouched (`training.checkpoint.writer` removes a checkpoint that
it could not finish), so only the steps since then are lost.
"""

import logging

from system.free_resources import measure_size
from system.machine_faults import is_out_of_space
from training.checkpoint.format import list_checkpoints
from training.preflight.preflight import find_model_size
from training.preflight.requirements import ModelSize, estimate_checkpoint, estimate_disk
from training.run import run_state
from training.run.folder import RunFolder
from training.spec import SettingError, TrainingSpec

logger = logging.getLogger(__name__)


_SPARE_BYTES = 16 << 20  # the log, events and metrics
_COPIES = 2  # the shards being copied, and the checkpoint
_MAX_REASON_CHARACTERS = 300


def record_full_disk_pause(run: RunFolder, spec: TrainingSpec, exc: BaseException) -> None:
    """Record that a run pauses because the disk is full, and how much space it needs.

    A run that has taken no step since its last such pause stays paused until the user resumes it,
    because the full disk is not the one whose free space is compared. If the full disk has no space
    for the record itself, the record stays unchanged; then the next start of the run resumes it, or
    the queue does once it finds that the run's process has ended.
    """
    reason = " ".join(str(exc).split())[:_MAX_REASON_CHARACTERS]
    logger.error("run %s pauses: %s", run.path.name, reason, exc_info=exc)
    record = run.read_record()
    if record.is_final or record.writer == "queue":  # it has ended, or another process resumes it
        return
    needed_bytes = _estimate_needed(run, spec)
    last = run.metrics.read_last()
    step = int(last["step"]) if last else 0
    is_stuck = record.full_disk_step is not None and step <= record.full_disk_step
    when = "when it is resumed" if is_stuck else f"when {needed_bytes / 1e9:,.2f} GB are free"
    try:
        if is_stuck:
            run.request_pause()
        run.events.add(
            f"Paused because the disk is full: {reason}. It continues from its last checkpoint "
            f"{when}; make room",
            level="warn",
            code="disk_full",
            data={"step": step, "needed_bytes": needed_bytes},
        )
    except OSError as error:
        _log_unrecorded_pause(error)
    try:
        waiting_for = f"room on the disk, which is full; it resumes {when}"
        run_state.pause_on_full_disk(run, waiting_for, needed_bytes, step)
    except OSError as error:
        _log_unrecorded_pause(error)


def _estimate_needed(run: RunFolder, spec: TrainingSpec) -> int:
    """Estimate the free bytes that a run needs to save its next checkpoint.

    Before the first checkpoint, the estimate includes the space that the pre-flight requires.
    """
    checkpoints = list_checkpoints(run.checkpoints)
    if checkpoints:
        return _COPIES * measure_size(checkpoints[0].path) + _SPARE_BYTES
    try:
        size = find_model_size(spec) or ModelSize(0, 0)
    except SettingError:  # its files have changed since; the next start reports that
        size = ModelSize(0, 0)
    checkpoint = estimate_checkpoint(spec, size)
    folder = estimate_disk(spec, size, has_trained=False)
    return max(_COPIES * checkpoint.likely, folder.certain + checkpoint.likely) + _SPARE_BYTES


def _log_unrecorded_pause(error: OSError) -> None:
    """Log that the pause could not be recorded; raises `error` if the disk is not full."""
    if not is_out_of_space(error):
        raise error
    logger.error("the pause cannot be recorded on the full disk: %s", error)
