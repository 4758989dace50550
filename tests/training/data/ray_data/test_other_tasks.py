"""Labelled texts and images are streamed as the engine `local` stores them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_encoder import build_tiny_encoder
from tests.tiny_vision import build_tiny_vit, write_image_folder
from tests.training.data.ray_data.test_window_tasks import Shard
from training.batching import BatchPlan, plan_epoch
from training.data.images.image_rows import IMAGE_LAYOUT
from training.data.labelled.texts import LABELLED_LAYOUT
from training.data.prepare import prepare_data
from training.data.ray_data import spans
from training.data.ray_data.streamed_rows import StreamedRows
from training.data.ray_data.window_tasks import PrepareWindow
from training.data.row_table import RowTable
from training.data.run_tables import link_data
from training.place import Place
from training.spec import TrainingSpec
from training.task import find_task

pytestmark = pytest.mark.usefixtures("without_cluster")


def make_settings(task: str, folder: Path) -> dict[str, Any]:
    """Write rows and a model of a task; returns the settings that name them."""
    if task == "image_classification":
        images = write_image_folder(folder / "shapes", 5)
        model = build_tiny_vit(folder / "model")
        return {"base_model": str(model), "train_file": str(images), "micro_batch_size": 2}
    rows = "".join(
        f'"a row,\nof {number}",{"good" if number % 3 else "bad"}\n' for number in range(20)
    )
    (folder / "rows.csv").write_text(f"text,label\n{rows}")
    model = build_tiny_encoder(folder / "model")
    return {
        "base_model": str(model),
        "train_file": str(folder / "rows.csv"),
        "micro_batch_tokens": 64,
        "task_settings": {"class_weights": "balanced"},
    }


@pytest.mark.parametrize(
    ("task", "layout", "window"),
    [
        ("image_classification", IMAGE_LAYOUT, 6),
        ("sequence_classification", LABELLED_LAYOUT, 120),
    ],
)
def test_rows_of_other_tasks_are_streamed(
    task: str, layout: Any, window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "_SPAN_IMAGES", 4)
    settings = {**make_settings(task, tmp_path), "task": task, "shuffle_window": window}
    specs = {
        engine: TrainingSpec.model_validate({**settings, "data_engine": engine})
        for engine in ("local", "ray")
    }
    for engine, spec in specs.items():
        link_data(prepare_data(spec, tmp_path / "cache"), tmp_path / engine)
    local = RowTable(tmp_path / "local" / "train.arrow", layout)
    spec = specs["ray"]
    data = tmp_path / "ray"
    work = PrepareWindow(spec.model_dump_json(), str(data), "training", fallback=None)
    place = Place(0, 1, torch.device("cpu"))
    rows = StreamedRows(data, "training", layout, Shard(work, 50, 0, 1), place)
    plan = BatchPlan.from_spec(spec, "padded", 1)
    objectives = [
        find_task(task).open_objective(one, prepare_data(one, tmp_path / "cache").summary)
        for one in specs.values()
    ]
    for epoch in range(2):
        steps = plan_epoch(local.lengths, plan, epoch)
        assert steps.locate(len(steps)).window > 1
        if epoch == 0:
            rows.begin(0, steps.locate(0), plan)
        for step in steps:
            weights = [objectives[0].weigh_targets(one, step.rows) for one in (local, rows)]
            assert weights[0] == weights[1] > 0
            for batch in step.micro_batches:
                found, expected = rows.read(batch), local.read(batch)
                assert [show(row) for row in found] == [show(row) for row in expected]


def show(row: Any) -> list[Any]:
    return [
        bytes(part) if hasattr(part, "__array__") or isinstance(part, memoryview) else part
        for part in row
    ]
