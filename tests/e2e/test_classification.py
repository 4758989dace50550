"""`python -m training` for sequence classification: two ZeRO-3 workers under Ray Train."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from storage import durable
from tests.tiny_encoder import build_tiny_encoder
from tests.training_process import run_spec
from training.batching import BatchPlan, plan_epoch
from training.data.labelled.texts import LABELLED_LAYOUT
from training.data.row_table import RowTable
from training.deepspeed.optimizer import learning_rate_at
from training.spec import load_spec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.trains,
    pytest.mark.usefixtures("forked_workers"),
]

NOUNS, WORDS = ("film", "book"), {"good": "positive", "bad": "negative"}
ROWS: list[dict[str, Any]] = [
    {
        "sentence1": f"the {NOUNS[number % 2]} was {'very ' * (number % 3)}{word}",
        "sentence2": "it is plain" if number % 3 else "really",
        "label": label,
    }
    for number in range(20)
    for word, label in WORDS.items()
]
SPEC: dict[str, Any] = {
    "base_model": "encoder",
    "task": "sequence_classification",
    "train_file": "rows.jsonl",
    "validation_fraction": 0.2,
    "epochs": 4,
    "learning_rate": 0.003,
    "weight_decay": 0.0,
    "micro_batch_size": 2,
    "precision": "fp32",
    "keep": "best",
    "best_metric": "f1_macro",
    "keep_checkpoints": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fine-tune a model whose head and pooler are new."""
    folder = tmp_path_factory.mktemp("classification")
    build_tiny_encoder(folder / "encoder")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    run_spec(folder, SPEC)
    return folder


def read_metrics(folder: Path) -> list[dict[str, float]]:
    return durable.read_json_lines(folder / "run" / "metrics.jsonl")


def test_model_names_its_classes_and_classifies(folder: Path) -> None:
    model_folder = folder / "run" / "model"
    model = AutoModelForSequenceClassification.from_pretrained(model_folder)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    assert model.config.id2label == {0: "negative", 1: "positive"}
    assert model.config.problem_type == "single_label_classification"
    texts = ["the film was very good", "the book was bad"]
    inputs = tokenizer(texts, ["really", "it is plain"], padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**inputs).logits.argmax(-1)
    assert [model.config.id2label[one] for one in found.tolist()] == ["positive", "negative"]


def test_best_evaluation_becomes_the_model(folder: Path) -> None:
    evaluated = [line for line in read_metrics(folder) if "eval_f1_macro" in line]
    assert len(evaluated) == 4
    best = max(line["eval_f1_macro"] for line in evaluated)
    last = [line for line in evaluated if line["eval_f1_macro"] == best][-1]
    lineage = durable.read_json(folder / "run" / "model" / "lineage.json")
    assert lineage["checkpoint_step"] == last["step"]
    assert lineage["metrics"]["eval_f1_macro"] == pytest.approx(best)
    assert lineage["data"]["label_counts"].keys() == {"negative", "positive"}


def test_losses_equal_those_of_one_process(folder: Path) -> None:
    """Start from the same random head, and take the first epoch's steps without DeepSpeed."""
    spec = load_spec(folder / "spec.json")
    rows = RowTable(folder / "run" / "data" / "train.arrow", LABELLED_LAYOUT)
    steps = plan_epoch(rows.lengths, BatchPlan.from_spec(spec, "padded", 2), 0)
    num_steps = len(steps) * spec.epochs
    torch.manual_seed(spec.seed)
    model = AutoModelForSequenceClassification.from_pretrained(folder / "encoder", num_labels=2)
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=spec.adam_betas, eps=spec.adam_epsilon, weight_decay=0.0
    )
    numbers = {"negative": 0, "positive": 1}
    expected = []
    for index, step in enumerate(steps):
        read = rows.read(step.rows)
        losses = [
            model(
                input_ids=torch.tensor(row.input_ids.tolist())[None],
                token_type_ids=torch.tensor(row.type_ids.tolist())[None],
                labels=torch.tensor([numbers[row.labels[0]]]),
            ).loss
            for row in read
        ]
        loss = torch.stack(losses).mean()
        expected.append(loss.item())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(index, num_steps, spec)
        optimizer.step()
    found = [line["loss"] for line in read_metrics(folder)[: len(steps)]]
    assert found == pytest.approx(expected, abs=1e-4)
