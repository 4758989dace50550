from typing import Any

import pytest

from model_files.config_settings import clean_config
from model_files.model_task import find_model_task


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "sequence_classification"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "sequence_classification"),
        ({"architectures": ["ModernBertForMaskedLM"]}, "masked_lm"),
        ({"architectures": ["BertForMaskedLM"], "is_decoder": True}, "causal_lm"),
        ({"architectures": ["LlamaForCausalLM"]}, "causal_lm"),
        ({"architectures": []}, "causal_lm"),
        ({"architectures": "x"}, "causal_lm"),
        ({}, "causal_lm"),
    ],
)
def test_architecture_decides_task(config: dict[str, Any], task: str) -> None:
    assert find_model_task(config) == task


def test_labels_of_classifiers_are_kept() -> None:
    named = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "n/a", "1": "b"}}
    cleaned = clean_config({**named, "label2id": {"x": "/etc/passwd"}})
    assert cleaned == {**named, "label2id": {"n/a": 0, "b": 1}}
    hostile = {**named, "id2label": {"../x": "b"}}
    assert "id2label" not in clean_config(hostile)
