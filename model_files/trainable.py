"""Checks that a configuration describes a model that can be trained for a task."""

from collections.abc import Mapping
from typing import Any

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

# Encoders that transformers loads as causal models and does not list as masked language models.
# Each position attends to later positions unless the configuration sets `is_decoder`.
_OTHER_ENCODERS = frozenset({"bert-generation", "xlnet"})


def check_causal_task(config: Any, name: str) -> None:
    """Raise `ValueError` for a model that transformers would load but that is not causal.

    `name` is the model's name for the error message.
    """
    model_type = str(config.model_type)
    shown = f"{name!r} has the architecture {_name_architecture(config)}"
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{shown}, an encoder-decoder ('is_encoder_decoder'), expected a causal language model "
            "(decoder only), such as Llama, Qwen or GPT-2; choose another model"
        )
    is_encoder = model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or model_type in _OTHER_ENCODERS
    if is_encoder and not getattr(config, "is_decoder", False):
        raise ValueError(
            f"{shown}, an encoder, in which each token sees the tokens after it: trained on the "
            "next token it would learn to copy. Expected a causal language model, such as Llama, "
            "Qwen or GPT-2; choose another model, or set 'is_decoder' to true in config.json if "
            "this one was trained as a decoder"
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(
            f"{shown} (model_type {model_type!r}), which the installed transformers has no causal "
            "language model for; choose another model"
        )


def check_sequence_task(config: Any, name: str) -> None:
    """Raise `ValueError` for an architecture that transformers has no sequence classifier of.

    `name` is the model's name for the error message.
    """
    model_type = str(config.model_type)
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{name!r} has the architecture {_name_architecture(config)}, an encoder-decoder "
            "('is_encoder_decoder'), expected an encoder or a decoder, such as BERT, ModernBERT or "
            "Llama; choose another model"
        )
    if model_type not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        raise ValueError(
            f"{name!r} has the architecture {_name_architecture(config)} (model_type "
            f"{model_type!r}), which the installed transformers has no classification head for; "
            "choose another model, such as BERT, ModernBERT or Llama"
        )


def check_image_task(config: Any, name: str) -> None:
    """Raise `ValueError` for an architecture that transformers has no image classifier of.

    `name` is the model's name for the error message.
    """
    model_type = str(config.model_type)
    if model_type not in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        raise ValueError(
            f"{name!r} has the architecture {_name_architecture(config)} (model_type "
            f"{model_type!r}), which the installed transformers has no image classifier for; "
            "choose another model, such as ViT, ConvNeXt or ResNet"
        )
    num_channels = getattr(config, "num_channels", 3)
    if num_channels != 3:
        raise ValueError(
            f"{name!r} takes images of {num_channels} channels ('num_channels' in config.json), "
            "expected 3: red, green and blue"
        )


def check_unquantised(config: Any, name: str) -> None:
    """Raise `ValueError` for weights that are stored quantised, which cannot be trained."""
    quantised = getattr(config, "quantization_config", None)
    if not quantised:
        return
    settings = quantised if isinstance(quantised, dict) else quantised.to_dict()
    raise ValueError(
        f"the weights of {name!r} are quantised ({_describe_quantisation(settings)}: "
        "'quantization_config' in config.json), which cannot be trained in full; use the original "
        "model in bf16, fp16 or fp32, or dequantise it"
    )


def is_of_base(name: str, base_model_prefix: str) -> bool:
    """Return whether a weight belongs to the base model of a class with a head.

    The head, and a pooler before it, are new where the base model was trained for something else.
    """
    return name.startswith(f"{base_model_prefix}.") and ".pooler." not in name


def drop_head(report: Mapping[str, Any], base_model_prefix: str) -> dict[str, list[Any]]:
    """Return transformers' report of weights that do not match, without those of a head.

    Its lists have names, or tuples that begin with a name.
    """

    def is_kept(found: Any) -> bool:
        name = found[0] if isinstance(found, tuple) else found
        return is_of_base(str(name), base_model_prefix)

    return {kind: list(filter(is_kept, found)) for kind, found in report.items()}


def _describe_quantisation(settings: dict[str, Any]) -> str:
    method = str(settings.get("quant_method") or "of an unnamed method")
    if settings.get("load_in_4bit"):
        return f"{method}, 4 bits"
    if settings.get("load_in_8bit"):
        return f"{method}, 8 bits"
    bits = settings.get("bits") or settings.get("w_bit")
    return f"{method}, {bits} bits" if bits else method


def _name_architecture(config: Any) -> str:
    named = getattr(config, "architectures", None)
    return str(named[0]) if named else str(config.model_type)
