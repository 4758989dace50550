from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForImageClassification, BertConfig, ViTConfig

from tests.tiny_vision import build_tiny_convolutions, build_tiny_vit, write_image_folder
from training.base_model import load_config
from training.batching import BatchPlan
from training.data.images.image_rows import IMAGE_LAYOUT
from training.data.prepare import prepare_data
from training.data.row_table import RowTable
from training.export.model_settings import check_settings
from training.model import find_hidden_size, find_unfit_head, load_model
from training.preflight.preflight import check_base_model
from training.spec import SettingError, TrainingSpec
from training.task import Objective, find_task

TASK = find_task("image_classification")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    build_tiny_vit(folder / "vit")
    for kind in ("convnext", "resnet"):
        build_tiny_convolutions(folder / kind, kind)
    write_image_folder(folder / "shapes", 3)
    return folder


def make_spec(folder: Path, model: str = "vit", **settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "base_model": str(folder / model),
            "task": "image_classification",
            "train_file": str(folder / "shapes"),
            "precision": "fp32",
            **settings,
        }
    )


def open_objective(folder: Path, spec: TrainingSpec) -> tuple[Objective, RowTable]:
    prepared = prepare_data(spec, folder / "cache")
    return TASK.open_objective(spec, prepared.summary), RowTable(prepared.train, IMAGE_LAYOUT)


def collate(folder: Path, seed: int, *, is_training: bool, **settings: Any) -> Any:
    objective, rows = open_objective(folder, make_spec(folder, task_settings=settings))
    torch.manual_seed(seed)
    return objective.collate(rows.read([0, 4, 8]), "padded", is_training=is_training)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"randaugment": True},
        {"augmentation": "none", "randaugment": True},
        {"augmentation": "none", "mixup_alpha": 0.4},
    ],
)
def test_augmentation_is_that_of_the_seed(folder: Path, settings: dict[str, Any]) -> None:
    plain = collate(folder, 0, is_training=False, **settings)
    first, second, other = (
        collate(folder, seed, is_training=True, **settings).inputs["pixel_values"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first, plain.inputs["pixel_values"])
    assert plain.labels.tolist() == [0, 1, 2]


def test_training_without_augmentation_equals_evaluation(folder: Path) -> None:
    found = [
        collate(folder, seed, is_training=is_training, augmentation="none").inputs["pixel_values"]
        for seed, is_training in [(0, True), (1, False)]
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("model", ["vit", "convnext", "resnet"])
def test_loss_is_that_of_the_library(folder: Path, model: str) -> None:
    spec = make_spec(folder, model, task_settings={"augmentation": "none"})
    check_base_model(spec.base_model, TASK)
    objective, rows = open_objective(folder, spec)
    unfit = find_unfit_head(spec, objective)
    assert len(unfit) == 2  # two classes in the base model, three in the rows
    trained = load_model(spec, objective, unfit_head=unfit)
    batch = objective.collate(rows.read(range(9)), "padded", is_training=True)
    result = objective.compute(trained, batch)
    result.loss_sum.backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is not None for one in trained.parameters())
    expected = trained(**batch.inputs, labels=batch.labels).loss
    assert result.loss_sum.item() / 9 == pytest.approx(expected.item(), rel=1e-5)
    alone = [
        objective.compute(
            trained, objective.collate([row], "padded", is_training=True)
        ).loss_sum.item()
        for row in rows.read(range(9))
    ]
    assert sum(alone) == pytest.approx(result.loss_sum.item(), rel=1e-4)
    empty = objective.compute(trained, objective.collate([], "padded", is_training=True))
    assert empty.loss_sum.item() == 0
    assert objective.weigh_targets(rows, [0, 1]) == 2


def test_mixup_loss_is_weighted_by_shares(folder: Path) -> None:
    spec = make_spec(
        folder,
        task_settings={
            "augmentation": "none",
            "mixup_alpha": 0.5,
            "class_weights": {"red": 3.0},
        },
    )
    objective, rows = open_objective(folder, spec)
    model = load_model(spec, objective, unfit_head=find_unfit_head(spec, objective))
    torch.manual_seed(3)
    batch = objective.collate(rows.read([0, 4, 8]), "padded", is_training=True)
    assert batch.labels.shape == (3, 3)
    found = objective.compute(model, batch).loss_sum
    logs = model(**batch.inputs).logits.log_softmax(-1)
    expected = -(batch.labels * logs * torch.tensor([1.0, 1.0, 3.0])).sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert objective.weigh_targets(rows, [0, 4, 8]) == 5


def test_metrics_have_top5_only_for_more_classes(folder: Path) -> None:
    spec = make_spec(folder)
    names = [f"c{number}" for number in range(7)]
    summary = {"labels": names, "class_weights": [], "image_size": [32, 32]}
    metrics = TASK.open_objective(spec, summary).open_metrics(torch.device("cpu"))
    assert metrics is not None
    logits = torch.arange(7.0).repeat(7, 1)  # the last class is always first
    metrics.add(logits, torch.arange(7))
    found = metrics.compute()
    assert found["accuracy"] == pytest.approx(1 / 7)
    assert found["top5"] == pytest.approx(5 / 7)
    objective, _ = open_objective(folder, spec)
    few = objective.open_metrics(torch.device("cpu"))
    assert few is not None
    few.add(torch.eye(3), torch.arange(3))
    figures = few.compute()
    assert figures["accuracy"] == figures["f1_macro"] == 1
    assert "top5" not in figures
    with pytest.raises(SettingError, match="^best_metric is 'top5', which needs more than 5 clas"):
        open_objective(folder, make_spec(folder, best_metric="top5"))


def test_probe_is_fixed(folder: Path) -> None:
    objective, _ = open_objective(folder, make_spec(folder))
    inputs = objective.make_probe_inputs(None)
    assert inputs["pixel_values"].shape == (8, 3, 32, 32)
    assert inputs["pixel_values"].abs().max() <= 1
    again = open_objective(folder, make_spec(folder))[0].make_probe_inputs(None)
    assert torch.equal(inputs["pixel_values"], again["pixel_values"])


def test_published_folder_has_the_image_processor(folder: Path, tmp_path: Path) -> None:
    spec = make_spec(folder)
    objective, _ = open_objective(folder, spec)
    config = load_config(spec.base_model)
    objective.adapt_config(config)
    assert config.id2label == {0: "blue", 1: "green", 2: "red"}
    model = AutoModelForImageClassification.from_config(config)
    model.save_pretrained(tmp_path / "model")
    TASK.save_companions(spec.base_model, tmp_path / "model")
    assert (tmp_path / "model" / "preprocessor_config.json").is_file()
    assert check_settings(tmp_path / "model").passed


@pytest.mark.parametrize(("model", "width"), [("vit", 32), ("convnext", 16), ("resnet", 16)])
def test_width_is_that_of_the_widest_stage(folder: Path, model: str, width: int) -> None:
    assert find_hidden_size(str(folder / model)) == width


def test_micro_batch_has_32_rows_by_default(folder: Path) -> None:
    assert BatchPlan.from_spec(make_spec(folder), "padded", 2).num_rows == 32
    assert BatchPlan.from_spec(make_spec(folder, micro_batch_size=5), "padded", 2).num_rows == 5
    text = TrainingSpec.model_validate({"base_model": "m", "train_file": "rows.jsonl"})
    assert BatchPlan.from_spec(text, "padded", 2).num_rows is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "chat"}, "format is 'chat', which means nothing to task 'image_class"),
        ({"max_length": 64}, "max_length is 64, which means nothing to task 'image_class"),
        ({"micro_batch_size": 2048}, "micro_batch_tokens is 1024, less than micro_batch_size 2048"),
        ({"best_metric": "matthews"}, "best_metric is 'matthews', expected one of the figures"),
        ({"task_settings": {"mixup_alpha": -1}}, "task_settings of task 'image_classification'"),
        ({"task_settings": {"problem_type": "auto"}}, "task_settings of task 'image_class"),
    ],
)
def test_setting_without_meaning_is_refused(
    folder: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        make_spec(folder, **settings)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(ValueError, match="which the installed transformers has no image classif"):
        TASK.check_config(BertConfig(), "bert")
    with pytest.raises(ValueError, match="^'vit' takes images of 1 channels"):
        TASK.check_config(ViTConfig(num_channels=1), "vit")
