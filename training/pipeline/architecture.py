"""The architectures that can be cut into stages, and where their layers are. Imports no torch."""

from typing import Any, NamedTuple

from training.base_model import load_config
from training.spec import SettingError, TrainingSpec, name_source


class Family(NamedTuple):
    """The names of the parts of a decoder, in the order in which they compute.

    Decoder layers are `<blocks>.0` and so on. The head is the model's output embedding.
    """

    embedding: str
    positions: str | None  # learned embeddings of positions, added to those of tokens
    blocks: str
    norm: str
    rotary: str | None  # computes rotary embeddings of positions, for all decoder layers


_GPT2 = Family("transformer.wte", "transformer.wpe", "transformer.h", "transformer.ln_f", None)
_LLAMA = Family("model.embed_tokens", None, "model.layers", "model.norm", "model.rotary_emb")
_FAMILIES = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}


def find_family(config: Any) -> Family:
    """Return where the layers of a model are; raises `KeyError` if it cannot be cut."""
    return _FAMILIES[config.model_type]


def check_architecture(spec: TrainingSpec) -> None:
    """Raise `SettingError` for a pipeline that cannot cut its base model into so many stages."""
    if spec.strategy != "pipeline":
        return
    config = load_config(spec.base_model)
    name = name_source(spec.base_model)
    if config.model_type not in _FAMILIES or getattr(config, "add_cross_attention", False):
        raise SettingError(
            f"base_model {name!r} has the architecture {config.model_type!r}, which a pipeline "
            f"cannot cut into stages; it can cut {', '.join(sorted(_FAMILIES))}. Set strategy to "
            "'zero'"
        )
    num_layers = config.num_hidden_layers
    if spec.num_stages > num_layers:
        raise SettingError(
            f"the pipeline has {spec.num_stages} stages, and base_model {name!r} has {num_layers} "
            f"decoder layers: each stage needs one. Set pipeline_stages to {num_layers} or fewer"
        )
