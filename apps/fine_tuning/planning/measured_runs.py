"""Measured figures of earlier runs that computed as a planned one will."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from apps.fine_tuning.index.run_index import RunIndex
from storage.durable import DamagedFileError
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

logger = logging.getLogger(__name__)

_MAX_RUNS = 30
"""Newest runs of a model whose settings are compared."""
_MIN_STEPS = 3
_COMPARED = (
    *("task", "adapter", "quantization", "strategy", "zero_stage", "pipeline_stages"),
    *("num_workers", "accelerator", "threads_per_worker", "micro_batch_tokens"),
    *("micro_batch_size", "gradient_accumulation_steps", "batch_layout", "precision"),
    *("activation_checkpointing", "offload_optimizer", "offload_parameters", "max_length"),
    *("data_engine", "loop"),
)
"""The settings that decide how fast a run is and what memory it needs, beside its rows."""


class MeasuredRun(NamedTuple):
    """What a run measured: tokens per second of all its time, and the peak memory of a worker.

    `peak_memory_bytes` is None if its rows were others.
    """

    run_id: str
    tokens_per_s: float
    peak_memory_bytes: int | None


def find_measured_run(
    runs: RunIndex, model_id: str, spec: TrainingSpec, files: Sequence[str]
) -> MeasuredRun | None:
    """Find the newest run of a model whose speed depends on the same settings; None without one.

    A run on the same `files` is preferred. A run that cannot be read is skipped.
    """
    found: MeasuredRun | None = None
    own = [run for run in runs.scan().runs if run[1].request.get("model") == model_id]
    for run, record in own[:_MAX_RUNS]:
        has_same_rows = _list_files(record) == list(files)
        if found is not None and not has_same_rows:
            continue
        try:
            measured = _measure(run, record, spec, has_same_rows=has_same_rows)
        except (OSError, DamagedFileError):
            logger.info("run %s cannot be compared", record.id, exc_info=True)
            continue
        if measured is not None and has_same_rows:
            return measured
        found = found or measured
    return found


def _measure(
    run: RunFolder, record: RunRecord, spec: TrainingSpec, *, has_same_rows: bool
) -> MeasuredRun | None:
    last = run.metrics.read_last()
    if last is None or last["step"] < _MIN_STEPS or not last.get("trained_tokens"):
        return None
    other = run.read_spec()
    if any(getattr(other, name) != getattr(spec, name) for name in _COMPARED):
        return None
    peak = int(last.get("peak_memory_bytes", 0)) if has_same_rows else 0
    return MeasuredRun(record.id, last["trained_tokens"] / last["elapsed_s"], peak or None)


def _list_files(record: RunRecord) -> list[str]:
    """Return the ids of the files that a run learned from."""
    mixed = record.request.get("training_files")
    if mixed:
        return [str(entry["file"]) for entry in mixed]
    return [str(record.request.get("training_file"))]
