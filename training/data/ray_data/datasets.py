"""The data sets that Ray Train divides among the workers of a run."""

from pathlib import Path
from typing import Any

from training.batching import BatchPlan, choose_windows
from training.data.faults import RowRole
from training.data.ray_data.pipelines import make_options, number_items
from training.data.ray_data.requests import MAX_WINDOWS
from training.data.ray_data.row_index import IndexLayout
from training.data.ray_data.window_tasks import PrepareWindow, choose_table
from training.data.row_table import RowTable
from training.run.folder import RunFolder
from training.spec import TrainingSpec
from training.task import find_task


def make_datasets(run: RunFolder, spec: TrainingSpec) -> dict[str, Any]:
    """Make the data sets of a prepared run, by role; nothing is read before the workers iterate.

    The number of windows of an execution is at least that of an epoch of the largest plan, or
    `MAX_WINDOWS`: the workers start another execution for more.
    """
    roles: tuple[RowRole, ...] = ("training", "validation")
    return {
        role: _make_dataset(run, spec, role)
        for role in roles
        if (run.data / choose_table(role)).is_file()
    }


def make_data_config(spec: TrainingSpec) -> Any:
    """Return how Ray Train divides the data sets: blocks go to the workers in turn."""
    from ray.train import DataConfig

    memory_bytes = (spec.data_memory_mb << 20) * spec.num_workers
    return DataConfig(
        datasets_to_split="all",
        execution_options=make_options(memory_bytes),
        enable_shard_locality=False,
    )


def _make_dataset(run: RunFolder, spec: TrainingSpec, role: RowRole) -> Any:
    data = run.data.resolve()
    layout = IndexLayout(find_task(spec.task).open_objective(spec, run.read_data_summary()).layout)
    lengths = RowTable(Path(data) / choose_table(role), layout).lengths
    plan = BatchPlan.from_spec(spec, "padded", spec.num_workers)
    num_windows = len(choose_windows(lengths, plan, 0)) * (spec.epochs if role == "training" else 1)
    fallback = str(run.read_data_summary()["format"]).split(", ")[0]
    work = PrepareWindow(spec.model_dump_json(), str(data), role, fallback)
    return number_items(min(num_windows, MAX_WINDOWS), work)
