"""The rows of a run as Ray Data sets, which a loop gets with `ray.train.get_dataset_shard`."""

from functools import partial
from pathlib import Path
from typing import Any

from training.data.ray_data.pipelines import READER_CPUS
from training.own_loop.records import TRAIN_ROWS, VALIDATION_ROWS
from training.run.folder import RunFolder
from training.spec import TrainingSpec


def open_datasets(run: RunFolder, spec: TrainingSpec) -> dict[str, Any]:
    """Return the arguments of Ray Train's trainer for the rows of a loop; empty if it has none.

    The sets are `train` and `validation`, in the order of the rows.
    """
    if spec.loop is None or not run.read_data_summary()["num_rows"]:
        return {}
    import ray.data
    import ray.train

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    files = {"train": run.data / TRAIN_ROWS, "validation": run.data / VALIDATION_ROWS}
    names = {name for name, path in files.items() if path.is_file()}
    return {
        "datasets": {name: _open_rows(files[name]) for name in sorted(names)},
        "dataset_config": ray.train.DataConfig(datasets_to_split=_choose_split(spec, names)),
    }


def _open_rows(path: Path) -> Any:
    """Return the rows of a Parquet file as a data set, with a task for each of its row groups.

    `ray.data.read_parquet` would list the file in a task that takes a whole CPU, for which a small
    cluster has no room beside the workers.
    """
    import pyarrow.parquet as pq
    import ray.data

    groups = [{"group": group} for group in range(pq.read_metadata(path).num_row_groups)]
    made: Any = ray.data.from_items(groups, override_num_blocks=len(groups))
    return made.map_batches(
        partial(_read_group, str(path)),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=READER_CPUS,
    )


def _read_group(path: str, batch: Any) -> Any:
    """Read the row group whose number is in a batch of one row."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).read_row_group(batch["group"][0].as_py())


def _choose_split(spec: TrainingSpec, names: set[str]) -> Any:
    """Return what Ray Train divides among the workers: 'all', or a list of names."""
    return {"all": "all", "train": sorted(names & {"train"}), "none": []}[spec.loop_split]
