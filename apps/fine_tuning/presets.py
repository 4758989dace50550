"""Presets of a fine-tune: settings that replace several defaults together."""

from collections.abc import Mapping
from typing import Any

from apps.bundled import DEMONSTRATION_MODEL, read_adapter_settings
from training.spec import TrainingSpec
from training.task import find_task

_ADAPTER_TASKS = frozenset({"causal_lm", "sequence_classification"})
_RATE_FACTOR = 10
"""Ratio of learning rates of an adapter and of all weights, from "LoRA without regret" (2025)."""


def list_presets(defaults: TrainingSpec, root: str) -> dict[str, Mapping[str, Any]]:
    """Return, by its id, what each preset of a job changes in its default settings.

    `root` is the base model that the job's model descends from. The only preset is 'adapter'.
    """
    if defaults.task not in _ADAPTER_TASKS:
        return {}
    if root == DEMONSTRATION_MODEL and find_task(defaults.task).generates:
        return {"adapter": _select_changes(defaults, read_adapter_settings())}
    rate = min(_RATE_FACTOR * defaults.learning_rate, 1.0)
    return {"adapter": {"adapter": {"method": "lora", "rank": 16}, "learning_rate": rate}}


def _select_changes(defaults: TrainingSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which a fine-tune with `settings` differs from `defaults`."""
    same = {"base_model", "train_file", "task"}
    kept = defaults.model_dump(include=same)
    changed = TrainingSpec.model_validate({**kept, **settings}).model_dump(mode="json")
    before = defaults.model_dump(mode="json")
    found = {name: value for name, value in changed.items() if value != before[name]}
    return {name: settings.get(name, value) for name, value in found.items()}
