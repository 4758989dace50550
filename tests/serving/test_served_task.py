"""The tasks of stored models, and one that a single module adds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertForNextSentencePrediction

from serving import tasks
from serving.classification.classifier import ClassifierReplica, ClassifierReplicaSettings
from serving.classification.request import parse_classify_request
from serving.classification.wire import ClassifyCall
from serving.errors import InvalidRequestError
from serving.refusals import unwrap
from serving.served_task import find_model_task, list_served_tasks
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.tiny_encoder import build_tiny_encoder


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["BertForSequenceClassification"]}, "sequence_classification"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "sequence_classification"),
        ({"architectures": ["ModernBertForMaskedLM"]}, "embedding"),
        ({"architectures": ["BertForMaskedLM"], "is_decoder": True}, "causal_lm"),
        ({"architectures": ["LlamaForCausalLM"]}, "causal_lm"),
        ({"architectures": ["BertModel"]}, "embedding"),
        ({"architectures": ["GPT2LMHeadModel"]}, "causal_lm"),
        ({"architectures": ["ViTForImageClassification"]}, "image_classification"),
        ({"architectures": []}, "causal_lm"),
        ({"architectures": "x"}, "causal_lm"),
        ({}, "causal_lm"),
    ],
)
def test_architecture_decides_task(config: dict[str, Any], task: str) -> None:
    assert find_model_task(config) == task


@pytest.fixture
def new_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the task 'next_sentence', which one module defines."""
    folder = Path(__file__).parent.parent / "new_served_task"
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(folder)])
    list_served_tasks.cache_clear()
    yield
    list_served_tasks.cache_clear()


@pytest.mark.anyio
@pytest.mark.usefixtures("new_task")
async def test_model_of_a_task_of_one_module_classifies(
    layout: StorageLayout, tmp_path: Path
) -> None:
    folder = build_tiny_encoder(tmp_path / "m")
    model: Any = BertForNextSentencePrediction.from_pretrained(folder)
    model.save_pretrained(folder)
    store = ModelStore(layout)
    assert store.add(folder, "follows").task == "next_sentence"
    with pytest.raises(InvalidRequestError, match="'follows' tells whether two texts belong"):
        store.get("follows").check_answers("text")
    replica = ClassifierReplica(ClassifierReplicaSettings(storage=str(layout.root)))
    body = {"model": "follows", "input": [["the film", "was good"]]}
    call = ClassifyCall("clsf-1", parse_classify_request(body))
    (found,) = unwrap(await replica.classify(call)).results
    tokens = AutoTokenizer.from_pretrained(folder)("the film", "was good", return_tensors="pt")
    with torch.no_grad():
        expected = model.eval()(**tokens).logits.softmax(-1)[0].tolist()
    assert dict(found.labels) == pytest.approx({"LABEL_0": expected[0], "LABEL_1": expected[1]})
