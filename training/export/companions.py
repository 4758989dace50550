"""What a model's directory has beside its weights: configuration, tokenizer, image processor."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedConfig

from model_files.end_ids import list_end_ids
from templating.arguments import set_arguments
from templating.renderer import TemplateValue
from training.base_model import load_config, load_generation_config, open_tokenizer
from training.export.model_settings import remove_stale_settings
from training.task import Objective


def open_config(base_model: str, dtype: torch.dtype, objective: Objective) -> PreTrainedConfig:
    """Return the configuration of a model with weights of `dtype`; raises `UnknownModelError`."""
    config = load_config(base_model)
    remove_stale_settings(config)
    config.dtype = dtype
    objective.adapt_config(config)
    return config


def save_inputs(
    base_model: str,
    config: PreTrainedConfig,
    directory: Path,
    objective: Objective,
    template_arguments: Mapping[str, TemplateValue],
) -> None:
    """Save tokenizer and settings of generation, or the image processor."""
    if objective.task.generates:
        copy_text_companions(base_model, config, template_arguments, directory)
    else:
        objective.task.save_companions(base_model, directory)


def copy_text_companions(
    base_model: str,
    config: PreTrainedConfig,
    template_arguments: Mapping[str, TemplateValue],
    directory: Path,
) -> None:
    """Save tokenizer, chat template and generation settings beside the weights.

    The generation settings stop at every token at which training may have ended an answer.
    """
    tokenizer = open_tokenizer(base_model)
    set_arguments(tokenizer, template_arguments)
    tokenizer.init_kwargs.pop("auto_map", None)
    try:
        tokenizer.save_pretrained(directory)
    except Exception as exc:
        if type(exc) is not Exception:
            raise
        raise OSError(str(exc)) from exc  # its library has no specific type for a full disk
    generation = load_generation_config(base_model) or GenerationConfig.from_model_config(config)
    if end_ids := list_end_ids(generation, tokenizer):
        generation.eos_token_id = end_ids[0] if len(end_ids) == 1 else list(end_ids)
    generation.save_pretrained(directory)
