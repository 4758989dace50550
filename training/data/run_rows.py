"""The rows of a run as its workers read them, from a table or from a stream."""

from pathlib import Path
from typing import Any

from training.data.faults import RowRole
from training.data.row_table import RowLayout, RowTable
from training.place import Place
from training.spec import TrainingSpec


def open_rows(
    spec: TrainingSpec, data: Path, role: RowRole, layout: RowLayout[Any, Any], place: Place
) -> RowTable | None:
    """Open rows in the data folder of a run, in a worker; None without validation rows."""
    path = data / ("train.arrow" if role == "training" else "validation.arrow")
    if not path.is_file():
        return None
    if spec.data_engine == "local":
        return RowTable(path, layout)
    import ray.train

    from training.data.ray_data.streamed_rows import StreamedRows

    return StreamedRows(data, role, layout, ray.train.get_dataset_shard(role), place)
