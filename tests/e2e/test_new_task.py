"""A task that one module adds, trained by the product's command without any other change."""

import json
import os
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from storage import durable
from tests.tiny_encoder import WORDS, build_tiny_encoder
from tests.training_process import run_spec

pytestmark = [pytest.mark.e2e, pytest.mark.trains, pytest.mark.long]

MODULES = Path(__file__).parent.parent / "new_task"
SITE = f"import training.tasks\ntraining.tasks.__path__.append({str(MODULES)!r})\n"


def test_task_of_one_module_is_trained_and_verified(tmp_path: Path) -> None:
    build_tiny_encoder(tmp_path / "encoder")
    rows = [{"text": " ".join(WORDS[start % 4 :: 2])} for start in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    spec = {
        "base_model": "encoder",
        "task": "masked_lm",
        "task_settings": {"mask_every": 3},
        "train_file": "rows.jsonl",
        "validation_fraction": 0.25,
        "epochs": 6,
        "learning_rate": 0.005,
        "micro_batch_size": 2,
        "precision": "fp32",
        "keep": "best",
        "best_metric": "hits",
    }
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    paths = [str(site), *sys.path]
    run_spec(tmp_path, spec, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    metrics = durable.read_json_lines(tmp_path / "run" / "metrics.jsonl")
    hits = [line["eval_hits"] for line in metrics if "eval_hits" in line]
    assert len(hits) == 6
    assert max(hits) > 0.5
    model = tmp_path / "run" / "model"
    report = durable.read_json(model / "verification.json")
    assert report["passed"]
    assert AutoModelForMaskedLM.from_pretrained(model).config.architectures == ["BertForMaskedLM"]
