"""The check that an adapter fits its base model, without reading a weight."""

from typing import Any

import torch
import transformers

from training.adapters.layers import add_adapter
from training.base_model import load_config
from training.spec import TrainingSpec
from training.task import find_task


def count_learned_parameters(spec: TrainingSpec) -> int | None:
    """Return the number of parameters of the spec's adapter; None if all weights are learned.

    A new head counts with the number of classes of the base model. Raises `SettingError` for an
    adapter that does not fit, and `UnknownModelError`.
    """
    if spec.adapter is None:
        return None
    task = find_task(spec.task)
    with torch.device("meta"):
        model: Any = getattr(transformers, task.model_class).from_config(
            load_config(spec.base_model), trust_remote_code=False
        )
        add_adapter(model, spec.adapter, has_new_head=task.adds_head, seed=spec.seed)
    sizes: list[int] = [one.numel() for one in model.parameters() if one.requires_grad]
    return sum(sizes)
