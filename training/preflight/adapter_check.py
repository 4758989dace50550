"""The check that an adapter fits its base model, without reading a weight."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from training.adapters.continuation import check_continued
from training.adapters.layers import add_adapter
from training.adapters.names import name_in_file
from training.base_model import load_config
from training.spec import TrainingSpec
from training.task import find_task


class PlannedAdapter(NamedTuple):
    """The adapter that a training will learn: its tensors as in PEFT's files, by their names."""

    shapes: Mapping[str, tuple[int, ...]]
    fan_in_fan_out: bool

    @property
    def num_parameters(self) -> int:
        """Number of learned parameters."""
        return sum(map(math.prod, self.shapes.values()))


def plan_learned_tensors(spec: TrainingSpec) -> PlannedAdapter | None:
    """Return the adapter of a spec as it will be learned; None if all weights are learned.

    A new head is part of it, with the number of classes of the base model. Raises `SettingError`
    for an adapter that does not fit, or that is not the one to continue, and `UnknownModelError`.
    """
    if spec.adapter is None:
        return None
    task = find_task(spec.task)
    with torch.device("meta"):
        model: Any = getattr(transformers, task.model_class).from_config(
            load_config(spec.base_model), trust_remote_code=False
        )
        config = add_adapter(model, spec.adapter, has_new_head=task.adds_head, seed=spec.seed)
    shapes = {
        name_in_file(name): tuple(one.shape)
        for name, one in model.named_parameters()
        if one.requires_grad
    }
    if spec.base_adapter is not None:
        check_continued(Path(spec.base_adapter), config, shapes)
    return PlannedAdapter(shapes, bool(config.fan_in_fan_out))


def count_learned_parameters(spec: TrainingSpec) -> int | None:
    """Return the number of parameters of the spec's adapter; None if all weights are learned.

    Raises as `plan_learned_tensors` does.
    """
    planned = plan_learned_tensors(spec)
    return None if planned is None else planned.num_parameters
