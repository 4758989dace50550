"""The optimizer with its weight decay, and the learning rate schedule."""

import math
from typing import Any

import torch

from training.spec import TrainingSpec


def learning_rate_at(step: int, num_steps: int, spec: TrainingSpec) -> float:
    """Return the learning rate of optimizer step `step`, counted from 0, of `num_steps`.

    It rises linearly over the first `warmup_steps`, or `warmup_ratio` of the steps. Then it falls
    to 0 along half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts) or a
    line, or stays constant.
    """
    num_warmup = spec.warmup_steps
    if num_warmup is None:
        num_warmup = math.ceil(spec.warmup_ratio * num_steps)
    if step < num_warmup:
        return spec.learning_rate * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(1, num_steps - num_warmup)
    if spec.lr_schedule == "cosine":
        return spec.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if spec.lr_schedule == "linear":
        return spec.learning_rate * (1 - progress)
    return spec.learning_rate


def build_optimizer(model: torch.nn.Module, spec: TrainingSpec) -> torch.optim.AdamW:
    """Build AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) with decay on matrices only.

    A sharded parameter is flat, so its gathered shape (`ds_shape`) decides. PyTorch's fused step is
    also vectorised on CPUs, where an offloaded optimizer runs; it resumes bit for bit, which
    DeepSpeed's own step for CPUs does not.
    """
    decayed: list[torch.nn.Parameter] = []
    undecayed: list[torch.nn.Parameter] = []
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        is_matrix = len(getattr(parameter, "ds_shape", parameter.shape)) > 1
        (decayed if is_matrix else undecayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": spec.weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=spec.learning_rate,
        betas=spec.adam_betas,
        eps=spec.adam_epsilon,
        fused=True,
    )
