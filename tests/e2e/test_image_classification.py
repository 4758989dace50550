"""`python -m training` for image classification: two workers with ZeRO-3, and two with ddp."""

import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from storage import durable
from tests.tiny_vision import COLOURS, build_tiny_vit, draw_shape, write_image_folder
from tests.training_process import run_spec
from training.batching import BatchPlan, plan_epoch
from training.data.images.image_rows import IMAGE_LAYOUT
from training.data.row_table import RowTable
from training.deepspeed.optimizer import learning_rate_at
from training.spec import load_spec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.trains,
    pytest.mark.long,
    pytest.mark.usefixtures("forked_workers"),
]

NAMES = sorted(COLOURS)
SPEC: dict[str, Any] = {
    "base_model": "vit",
    "task": "image_classification",
    "task_settings": {"augmentation": "none"},
    "train_file": "shapes",
    "validation_fraction": 0.25,
    "epochs": 5,
    "learning_rate": 0.003,
    "weight_decay": 0.0,
    "micro_batch_size": 4,
    "precision": "fp32",
    "keep": "best",
    "best_metric": "accuracy",
    "keep_checkpoints": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune a model whose head is new: three classes in place of two."""
    return train(tmp_path_factory.mktemp("images"))


def train(folder: Path, *, num_labels: int = 2, **settings: Any) -> Path:
    """Fine-tune in a folder, which then has the inputs and the output `run`; return it.

    With three labels, the base model has a head that fits; else the head is new and random.
    """
    build_tiny_vit(folder / "vit", num_labels=num_labels)
    write_image_folder(folder / "shapes", 24)
    run_spec(folder, {**SPEC, **settings})
    return folder


def read_metrics(folder: Path) -> list[dict[str, float]]:
    return durable.read_json_lines(folder / "run" / "metrics.jsonl")


def open_processor(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # transformers leaves a file open
        return AutoImageProcessor.from_pretrained(folder)


def test_model_names_its_classes_and_classifies(folder: Path) -> None:
    model = AutoModelForImageClassification.from_pretrained(folder / "run" / "model")
    processor = open_processor(folder / "run" / "model")
    assert model.config.id2label == dict(enumerate(NAMES))
    expected = [name for name in NAMES for _ in range(20)]
    images = [draw_shape(name, 9000 + number) for number, name in enumerate(expected)]
    with torch.no_grad():
        found = model(**processor(images, return_tensors="pt")).logits.argmax(-1).tolist()
    hits = [NAMES[one] == name for one, name in zip(found, expected, strict=True)]
    assert sum(hits) >= 0.95 * len(hits)


def test_best_evaluation_becomes_the_model(folder: Path) -> None:
    evaluated = [line for line in read_metrics(folder) if "eval_accuracy" in line]
    assert len(evaluated) == 5
    assert "eval_top5" not in evaluated[0]
    lineage = durable.read_json(folder / "run" / "model" / "lineage.json")
    best = max(line["eval_accuracy"] for line in evaluated)
    assert lineage["metrics"]["eval_accuracy"] == pytest.approx(best)
    assert best >= 0.95
    assert set(lineage["data"]["label_counts"]) == set(NAMES)
    assert durable.read_json(folder / "run" / "model" / "verification.json")["passed"]


def compute_in_one_process(folder: Path, model: Any) -> dict[str, list[float]]:
    """Take the steps of a run's first epoch without DeepSpeed, and evaluate once."""
    spec = load_spec(folder / "spec.json")
    rows = RowTable(folder / "run" / "data" / "train.arrow", IMAGE_LAYOUT)
    steps = plan_epoch(rows.lengths, BatchPlan.from_spec(spec, "padded", 2), 0)
    num_steps = len(steps) * spec.epochs
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=spec.adam_betas, eps=spec.adam_epsilon, weight_decay=0.0
    )
    found: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for index, step in enumerate(steps):
        loss = compute_loss(folder, model, rows, step.rows)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(index, num_steps, spec)
        optimizer.step()
        found["loss"].append(loss.item())
        found["grad_norm"].append(norm.item())
    held_out = RowTable(folder / "run" / "data" / "validation.arrow", IMAGE_LAYOUT)
    with torch.no_grad():
        loss = compute_loss(folder, model.eval(), held_out, range(len(held_out.lengths)))
    return {**found, "eval_loss": [loss.item()]}


def compute_loss(folder: Path, model: Any, rows: RowTable, indices: Sequence[int]) -> Any:
    """Return the mean loss of some rows."""
    read = rows.read(indices)
    images = [Image.open(BytesIO(row.image)).convert("RGB") for row in read]
    labels = torch.tensor([NAMES.index(row.labels[0]) for row in read])
    return model(**open_processor(folder / "vit")(images, return_tensors="pt"), labels=labels).loss


def check_metrics(folder: Path, expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        found = [line[name] for line in read_metrics(folder) if name in line]
        assert found[: len(values)] == pytest.approx(values, abs=1e-4), name


def test_losses_equal_those_of_one_process(folder: Path) -> None:
    """Start from the same random head."""
    torch.manual_seed(load_spec(folder / "spec.json").seed)
    for shape in [(1, 1, 32), (1, 65, 32)]:  # a ViT that is built with values draws its embeddings
        torch.randn(shape)
    model = AutoModelForImageClassification.from_pretrained(
        folder / "vit", num_labels=3, ignore_mismatched_sizes=True
    )
    check_metrics(folder, compute_in_one_process(folder, model))


def test_losses_of_ddp_equal_those_of_one_process(tmp_path: Path) -> None:
    """Start from a head that fits, because a random one depends on the strategy."""
    train(tmp_path, num_labels=3, strategy="ddp", epochs=4)
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "vit")
    check_metrics(tmp_path, compute_in_one_process(tmp_path, model))
    lines = read_metrics(tmp_path)
    assert len([line for line in lines if "eval_loss" in line]) == 4
    assert max(line.get("eval_accuracy", 0) for line in lines) >= 0.95
