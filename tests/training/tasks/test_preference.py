import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.tiny_model import build_tiny_model
from training.data.faults import DataError
from training.data.prepare import prepare_data
from training.data.row_table import RowTable
from training.data.run_tables import link_data
from training.data.text.preview import preview_rows
from training.model import load_model
from training.spec import TrainingSpec
from training.task import find_task

WORDS = ("bread", "fox", "dog", "baker", "model", "line", "morning", "word")
POLITE, RUDE = "Thank you, gladly: {}.", "No {} for you."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("preference") / "tiny")


def make_spec(tiny: Path, rows: Path, loss: str = "dpo", **settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "base_model": str(tiny),
            "train_file": str(rows),
            "task": "preference",
            "task_settings": {"loss": loss},
            "precision": "fp32",
            "micro_batch_tokens": 1024,
            **settings,
        }
    )


def write_rows(path: Path) -> Path:
    """Write a polite and a rude answer to each of 64 questions."""
    random = np.random.default_rng(0)
    lines = []
    for first in WORDS:
        for second in WORDS:
            answers = [text.format(f"{first} {random.integers(9)}") for text in (POLITE, RUDE)]
            asked = f"{first} and {second}?"
            lines.append({"prompt": asked, "chosen": answers[0], "rejected": answers[1]})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("loss", ["dpo", "ipo", "orpo", "kto"])
def test_accuracy_on_held_out_pairs_rises(tiny: Path, tmp_path: Path, loss: str) -> None:
    torch.set_num_threads(1)
    rows = write_rows(tmp_path / "rows.jsonl")
    spec = make_spec(tiny, rows, loss, validation_fraction=0.25, learning_rate=1e-3)
    data = prepare_data(spec, tmp_path / "cache")
    objective: Any = find_task("preference").open_objective(spec, data.summary)
    assert data.validation is not None
    train, held_out = (RowTable(path, objective.layout) for path in (data.train, data.validation))
    model = load_model(spec, objective)
    tables = {}
    for name, table in (("train", train), ("held out", held_out)):
        found = table.read(range(len(table)))
        batch = objective.collate(found, "padded", is_training=False)
        with torch.no_grad():
            values = objective.compute_references(model, batch).tolist()
        if not objective.needs_references:
            values = [(0.0, 0.0)] * len(found)
        tables[name] = [
            row._replace(references=one) for row, one in zip(found, values, strict=True)
        ]

    def measure() -> float:
        metrics = objective.open_metrics(torch.device("cpu"))
        batch = objective.collate(tables["held out"], "padded", is_training=False)
        with torch.no_grad():
            metrics.add(objective.compute(model, batch).predictions, batch.labels)
        return float(metrics.compute()["reward_accuracy"])

    before = measure()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(40):
        own = tables["train"][step % 4 :: 4]
        batch = objective.collate(own, "padded", is_training=True)
        (objective.compute(model, batch).loss_sum / len(own)).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = measure()
    print(loss, before, after)
    if objective.needs_references:
        assert before == 0.5  # all rewards are zero, and a tie counts half
    assert after >= 0.9


def test_a_row_of_a_file_without_a_side_is_named_by_its_line(tiny: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a", "chosen": "b"}\n'
    )
    with pytest.raises(DataError, match=r"'rejected' is missing, .* \(line 2\)"):
        prepare_data(make_spec(tiny, rows), tmp_path / "cache")


def write_verdicts(path: Path, *prompts: str) -> Path:
    rows = [{"prompt": one, "completion": "yes", "label": True} for one in prompts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_answer_of_another_row_does_not_make_a_row_too_long(tiny: Path, tmp_path: Path) -> None:
    rows = write_verdicts(tmp_path / "rows.jsonl", "a", "b", "c")
    long = {"prompt": "d", "completion": "word " * 200, "label": False}
    rows.write_text(rows.read_text() + json.dumps(long) + "\n")
    spec = make_spec(tiny, rows, "kto", max_length=64)
    for overlong, num_rows, num_cut in (("drop", 3, 0), ("truncate", 4, 1)):
        changed = spec.model_copy(update={"overlong": overlong})
        found = prepare_data(changed, tmp_path / overlong).summary
        assert (found["num_rows"], found["num_truncated_rows"]) == (num_rows, num_cut)
    refusing = spec.model_copy(update={"overlong": "refuse"})
    with pytest.raises(DataError, match=r"\(line 4\)"):
        prepare_data(refusing, tmp_path / "refuse")


def test_verdicts_on_answers_to_one_prompt_are_previewed_but_not_learned(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(tiny, write_verdicts(tmp_path / "rows.jsonl", *"aaab"), "kto")
    assert len(preview_rows(spec, 2).rows) == 2
    prepare_data(spec, tmp_path / "cache")
    monkeypatch.setattr("training.data.preference.reader._MAX_WAITING", 2)
    with pytest.raises(DataError, match="the first 2 rows have the same prompt"):
        prepare_data(spec, tmp_path / "other")
    write_verdicts(tmp_path / "rows.jsonl", "a", "a")
    with pytest.raises(DataError, match="all rows have the same prompt"):
        prepare_data(spec, tmp_path / "cache")


def test_default_settings_of_another_loss_are_accepted() -> None:
    settings = {"loss": "dpo", "desirable_weight": 1.0}
    spec = make_spec(Path("tiny"), Path("rows.jsonl"), task_settings=settings)
    assert spec.task_settings["loss"] == "dpo"


def test_figures_of_earlier_rows_are_removed(tiny: Path, tmp_path: Path) -> None:
    prepared = prepare_data(
        make_spec(tiny, write_rows(tmp_path / "rows.jsonl")), tmp_path / "cache"
    )
    for name in ("references-training.safetensors", "references-validation.safetensors"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_bytes(b"")
    link_data(prepared, tmp_path / "data")
    assert not list((tmp_path / "data").glob("references-*"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"task_settings": {"desirable_weight": 2.0}}, "means nothing to the loss 'dpo'"),
        ({"task_settings": {"loss": "ppo"}}, "task_settings of task 'preference'"),
        ({"task_settings": {"loss": "kto"}, "micro_batch_size": 1}, "expected at least 2"),
        ({"data_engine": "ray"}, "data_engine is 'ray', and task 'preference'"),
        ({"strategy": "pipeline", "zero_stage": 1}, "cuts language models only"),
        ({"max_length": 600}, "less than twice max_length"),
        ({"best_metric": "accuracy"}, "best_metric is 'accuracy'"),
        ({"batch_layout": "flattened"}, "batch_layout is 'flattened', which means nothing"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        make_spec(Path("tiny"), Path("rows.jsonl"), **settings)
