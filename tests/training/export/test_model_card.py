from typing import Any

import pytest
from huggingface_hub import ModelCard

from training.export.model_card import render_model_card


def make_lineage(**metrics: float) -> dict[str, Any]:
    return {
        "run_id": "ftjob-1",
        "base_model": "org/base",
        "base_model_revision": "sha256:ab",
        "root": {"base_model": "org/base", "base_model_revision": "sha256:ab"},
        "checkpoint_step": 12,
        "metrics": {"step": 12, "epoch": 2, "loss": 1.25, **metrics},
        "data": {
            "name": "rows.jsonl",
            "num_rows": 3,
            "num_tokens": 4000,
            "num_learned_tokens": 2000,
            "sha256": "cd",
            "fingerprint": "cd",
        },
        "spec": {"epochs": 2, "learning_rate": 1e-4, "lr_schedule": "cosine", "precision": "bf16"},
        "packages": {"torch": "2.13.0"},
    }


def test_model_card_has_hub_metadata() -> None:
    card: Any = ModelCard(render_model_card(make_lineage()))
    assert card.data.to_dict() == {
        "base_model": "org/base",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["tuneserve", "fine-tuned"],
    }
    for figure in ("3 rows", "4,000 tokens", "2,000 of them learned", "step 12", "1.2500", "torch"):
        assert figure in card.text
    assert "validation loss" not in card.text
    assert "first base model" not in card.text


def test_model_card_names_root_of_lineage() -> None:
    root = {"base_model": "org/first", "base_model_revision": "sha256:ef"}
    card: Any = ModelCard(render_model_card({**make_lineage(), "root": root}))
    assert "| first base model | `org/first`, `sha256:ef` |" in card.text


def test_validation_loss_is_an_eval_result() -> None:
    card: Any = ModelCard(render_model_card(make_lineage(eval_loss=1.5)))
    (result,) = card.data.eval_results
    assert result.metric_value == pytest.approx(1.5)
    assert (result.metric_type, result.task_type) == ("loss", "text-generation")
    assert result.dataset_name == "held-out rows of rows.jsonl"
    assert "| validation loss | 1.5000 |" in card.text
