"""The rows of a run as Ray Data sets, which a loop gets with `ray.train.get_dataset_shard`."""

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
        "datasets": {
            name: ray.data.read_parquet(str(files[name]), num_cpus=READER_CPUS)
            for name in sorted(names)
        },
        "dataset_config": ray.train.DataConfig(datasets_to_split=_choose_split(spec, names)),
    }


def _choose_split(spec: TrainingSpec, names: set[str]) -> Any:
    """Return what Ray Train divides among the workers: 'all', or a list of names."""
    return {"all": "all", "train": sorted(names & {"train"}), "none": []}[spec.loop_split]
