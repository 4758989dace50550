"""The task of a model, by the architecture that its configuration names; needs no transformers."""

from collections.abc import Mapping
from typing import Any, Literal

ModelTask = Literal["causal_lm", "sequence_classification", "masked_lm"]

MODEL_CLASSES: Mapping[ModelTask, str] = {
    "causal_lm": "AutoModelForCausalLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "masked_lm": "AutoModelForMaskedLM",
}
"""The class of transformers that loads the models of a task."""

_SUFFIXES: Mapping[str, ModelTask] = {
    "ForSequenceClassification": "sequence_classification",
    "ForMaskedLM": "masked_lm",
}


def find_model_task(config: Mapping[str, Any]) -> ModelTask:
    """Return the task of a parsed `config.json`; one that names no known head is a language model.

    'masked_lm' is an encoder that can only be fine-tuned. An encoder whose configuration sets
    `is_decoder` is a language model, as in `model_files.trainable`.
    """
    named = config.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    task = next((task for suffix, task in _SUFFIXES.items() if first.endswith(suffix)), None)
    if task is None or (task == "masked_lm" and config.get("is_decoder") is True):
        return "causal_lm"
    return task


def describe_model_task(model_id: str, task: ModelTask) -> str:
    """Return why a model does not fit a request, and what to do, for error messages."""
    if task == "sequence_classification":
        return f"model {model_id!r} is a text classifier; use POST /v1/classify"
    if task == "masked_lm":
        return (
            f"model {model_id!r} is an encoder without a head that answers requests; fine-tune it "
            "with the task 'sequence_classification'"
        )
    return (
        f"model {model_id!r} is a language model; use POST /v1/chat/completions or POST "
        "/v1/completions"
    )
