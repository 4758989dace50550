"""What a job will take: steps, tokens, time, memory and disk, before it is created.

Steps and tokens are counted from the rows if these are read already or quickly
(`training.preflight.step_estimate`), and estimated from the check of the file if not. Memory is
that of `training.preflight.worker_memory`. Time is measured, in an earlier run with the same model
and settings; without one, it is unknown.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypedDict

from apps.errors import invalid_input
from apps.file_store import FileStore
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.job_requests import FineTuneRequest
from apps.fine_tuning.planning.measured_runs import find_measured_run
from apps.fine_tuning.validation.row_validation import SlowRowsError, are_quick, prepare_rows
from serving.store.stored_model import StoredModel
from storage.layout import StorageLayout
from system.free_resources import measure_free_disk, measure_gpu_memory, measure_host_memory
from training.preflight.requirements import ModelSize, estimate_disk
from training.preflight.resources import resolve_precision, wants_gpu
from training.preflight.worker_memory import ModelShape, estimate_worker_memory
from training.spec import TrainingSpec
from training.task import find_task

if TYPE_CHECKING:
    from training.batching import BatchPlan
    from training.preflight.step_estimate import StepEstimate


class MemoryObject(TypedDict):
    """The memory of a job, per worker, and that of the machine; None: unknown.

    On CPUs the workers of a node share its memory, on GPUs each has one. `is_measured`: in the
    earlier run that `measured_by` of the estimate names.
    """

    device: Literal["cpu", "gpu"]
    num_workers: int
    worker_bytes: int | None
    is_measured: bool
    total_bytes: int | None
    free_bytes: int | None


class DiskObject(TypedDict):
    """The disk space that checkpoints and the model are likely to need, and the free one."""

    needed_bytes: int | None
    free_bytes: int


class EstimateObject(TypedDict):
    """What a job will take; None: unknown."""

    object: Literal["fine_tuning.estimate"]
    model: str
    task: str
    num_rows: int | None
    num_steps: int | None
    num_tokens: int | None
    is_exact: bool
    tokens_per_s: float | None
    training_s: float | None
    measured_by: str | None
    memory: MemoryObject
    disk: DiskObject


class RowFigures(TypedDict):
    """The rows of an epoch, and what they become; None: not counted yet."""

    num_rows: int | None
    longest: int | None
    steps: "StepEstimate | None"


class JobEstimator:
    """Estimates jobs that have been validated."""

    def __init__(self, layout: StorageLayout, runs: RunIndex) -> None:
        self._layout = layout
        self._runs = runs
        self._files = FileStore(layout)

    def estimate(
        self,
        model: StoredModel,
        request: FineTuneRequest,
        spec: TrainingSpec,
        size: ModelSize | None,
        nodes: Sequence[Mapping[str, float]],
    ) -> EstimateObject:
        """Estimate a job; reads its rows if they are small, and raises as `prepare_rows` does."""
        on_gpu = wants_gpu(spec, sum(node.get("GPU", 0.0) for node in nodes))
        resolved = resolve_precision(spec, on_gpu=on_gpu)
        rows = self._count_rows(request, resolved, on_gpu=on_gpu)
        files = [entry.file for entry in request.training_files or ()] or [request.training_file]
        measured = find_measured_run(self._runs, model.id, spec, files)
        steps = rows["steps"]
        seconds = steps.num_tokens / measured.tokens_per_s if steps and measured else None
        memory = _describe_memory(resolved, size, rows["longest"], nodes, on_gpu=on_gpu)
        if measured and measured.peak_memory_bytes:
            memory |= {"worker_bytes": measured.peak_memory_bytes, "is_measured": True}
        may_end_early = spec.early_stopping_patience is not None
        needed = estimate_disk(resolved, size, has_trained=False).likely if size else None
        return {
            "object": "fine_tuning.estimate",
            "model": model.id,
            "task": spec.task,
            "num_rows": rows["num_rows"],
            "num_steps": steps.num_steps if steps else None,
            "num_tokens": steps.num_tokens if steps else None,
            "is_exact": steps is not None and steps.is_exact and not may_end_early,
            "tokens_per_s": round(measured.tokens_per_s, 1) if measured else None,
            "training_s": round(seconds, 1) if seconds is not None else None,
            "measured_by": measured.run_id if measured else None,
            "memory": memory,
            "disk": {
                "needed_bytes": needed,
                "free_bytes": measure_free_disk(self._layout.root),
            },
        }

    def _count_rows(
        self, request: FineTuneRequest, spec: TrainingSpec, *, on_gpu: bool
    ) -> RowFigures:
        """Count the rows of a job and its steps, or estimate them from the checks of its files."""
        if spec.loop is not None:  # only the loop knows its steps
            return {"num_rows": None, "longest": None, "steps": None}
        files = [self._files.find_content(file_id) for file_id in request.list_files()]
        plan = _plan_batches(spec, on_gpu=on_gpu)
        if are_quick(files):
            with suppress(SlowRowsError):
                return self._count_exactly(spec, plan)
        return self._estimate_from_check(request, spec, plan)

    def _count_exactly(self, spec: TrainingSpec, plan: "BatchPlan") -> RowFigures:
        from training.data.row_table import RowTable
        from training.preflight.step_estimate import count_run

        prepared = prepare_rows(self._layout, spec)
        objective = find_task(spec.task).open_objective(spec, dict(prepared.summary))
        lengths = RowTable(prepared.train, objective.layout).lengths
        with invalid_input("training"):
            steps = count_run(lengths, plan, spec.epochs, spec.max_steps)
        return {
            "num_rows": len(lengths),
            "longest": int(lengths.max(initial=1)),
            "steps": steps,
        }

    def _estimate_from_check(
        self, request: FineTuneRequest, spec: TrainingSpec, plan: "BatchPlan"
    ) -> RowFigures:
        """Estimate from the check of a file, which used the task's and the model's defaults."""
        from training.preflight.step_estimate import estimate_run

        check = self._files.get(request.training_file).get("check")
        is_like = check is not None and check.get("task", spec.task) == spec.task
        if check is None or not is_like or not check["num_tokens"] or request.training_files:
            return {"num_rows": None, "longest": None, "steps": None}
        kept = 1 - spec.validation_fraction
        num_rows = check["num_rows"]
        if spec.max_rows is not None and spec.max_rows < num_rows:
            kept *= spec.max_rows / num_rows
        rows, tokens = round(num_rows * kept), round(check["num_tokens"] * kept)
        steps = estimate_run(rows, tokens, plan, spec.epochs, spec.max_steps)
        return {"num_rows": rows, "longest": None, "steps": steps}


def _plan_batches(spec: TrainingSpec, *, on_gpu: bool) -> "BatchPlan":
    """Return the plan by which workers will form batches."""
    import torch

    from training.batching import BatchPlan
    from training.model import choose_layout

    layout = choose_layout(spec, torch.device("cuda" if on_gpu else "cpu"))
    return BatchPlan.from_spec(spec, layout, spec.num_replicas)


def _describe_memory(
    spec: TrainingSpec,
    size: ModelSize | None,
    longest: int | None,
    nodes: Sequence[Mapping[str, float]],
    *,
    on_gpu: bool,
) -> MemoryObject:
    """Describe the memory of a worker, and the machine's; several nodes as Ray reports them."""
    from training.base_model import load_config

    shape = ModelShape.from_config(load_config(spec.base_model))
    needed = None
    if size is not None and shape is not None and spec.loop is None:
        longest = longest or spec.max_length or spec.micro_batch_tokens
        needed = estimate_worker_memory(spec, size, shape, longest, on_gpu=on_gpu)
    total, free = _measure_memory(nodes, on_gpu=on_gpu)
    return {
        "device": "gpu" if on_gpu else "cpu",
        "num_workers": spec.num_workers,
        "worker_bytes": needed,
        "is_measured": False,
        "total_bytes": total,
        "free_bytes": free,
    }


def _measure_memory(
    nodes: Sequence[Mapping[str, float]], *, on_gpu: bool
) -> tuple[int | None, int | None]:
    """Return total and free bytes: of one GPU, of this machine, or of all nodes together."""
    if on_gpu:
        gpus = measure_gpu_memory()
        return (
            (max(one.total for one in gpus), max(one.free for one in gpus))
            if gpus
            else (
                None,
                None,
            )
        )
    if len(nodes) > 1:
        known = sum(int(node.get("memory", 0)) for node in nodes)
        return known or None, None
    memory = measure_host_memory()
    return memory.total, memory.free
