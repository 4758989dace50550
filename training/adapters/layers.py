"""The adapter of a model in training: layers of PEFT, beside frozen weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.pytorch_utils import Conv1D

from training.adapters.continuation import load_values
from training.adapters.initial import start_from_weights
from training.adapters.names import ADAPTER_NAME
from training.adapters.targets import check_merge, choose_targets, find_saved_modules
from training.kernels.low_rank import fuse_products
from training.settings.adapter_settings import AdapterSettings

if TYPE_CHECKING:
    from peft import LoraConfig

_CPU = torch.device("cpu")


def plan_adapter(
    model: torch.nn.Module, settings: AdapterSettings, *, has_new_head: bool
) -> "LoraConfig":
    """Return PEFT's configuration of an adapter for a model, whose weights may be on `meta`.

    A new head is learned whole. Raises `SettingError` as `choose_targets` and `check_merge` do.
    """
    from peft import LoraConfig

    saved = find_saved_modules(model, settings, has_new_head=has_new_head)
    targets = choose_targets(model, settings, saved)
    if settings.export == "merged":
        check_merge(model, targets, saved)
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.scale_numerator,  # PEFT divides it
        lora_dropout=settings.dropout,
        target_modules=targets,
        modules_to_save=saved or None,
        fan_in_fan_out=any(isinstance(one, Conv1D) for one in model.modules()),
        use_dora=settings.method == "dora",
        use_rslora=settings.method == "rslora",
    )


def add_adapter(
    model: Any,
    settings: AdapterSettings,
    *,
    has_new_head: bool,
    seed: int,
    device: torch.device = _CPU,
    start: Path | None = None,
    is_resumed: bool = False,
) -> "LoraConfig":
    """Add an adapter to a model in place, and freeze everything else; returns its configuration.

    Its values are those of the adapter in the folder `start`, if there is one. Otherwise, random
    values depend only on `seed`, and values from the base weights are computed on `device`. Both
    are left out if a checkpoint is loaded next. Frozen parameters are left out of the model's
    state, and so of checkpoints. Raises `SettingError` as `choose_targets` does.
    """
    from peft import inject_adapter_in_model

    config = plan_adapter(model, settings, has_new_head=has_new_head)
    torch.manual_seed(seed)
    inject_adapter_in_model(config, model, ADAPTER_NAME)
    if start is not None and not is_resumed:
        load_values(model, start)
    if settings.init != "default":
        start_from_weights(model, settings.init, device, is_resumed=is_resumed)
    model.register_state_dict_post_hook(_drop_frozen)
    fuse_products(model)
    return config


def _drop_frozen(
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: object,  # noqa: ARG001
) -> None:
    """Keep learned parameters and buffers, and nothing that belongs to a frozen weight.

    A quantised one has scales in the state that are neither a parameter nor a buffer.
    """
    parameters = module.named_parameters(remove_duplicate=False)
    kept = {f"{prefix}{name}" for name, one in parameters if one.requires_grad}
    kept |= {f"{prefix}{name}" for name, _ in module.named_buffers(remove_duplicate=False)}
    for name in list(state):
        if name.startswith(prefix) and name not in kept:
            del state[name]
