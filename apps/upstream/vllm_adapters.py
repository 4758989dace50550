"""Adapters of the store for vLLM: which of them it computes as trained, and the arguments for them.

vLLM (0.29) has LoRA of one rank and one alpha per adapter, and applies the base model's tokenizer
and chat template to all requests. It ignores some settings of PEFT that it does not implement, so
an adapter that has one is refused here instead of being served with other values.
"""

from collections.abc import Sequence
from typing import TypedDict

from model_files.json_files import read_object
from model_files.same_tokenizer import find_tokenizer_difference
from model_files.tokenizer_settings import TOKENIZER_NAME
from model_files.weight_headers import ADAPTER_CONFIG_NAME
from serving.store.stored_model import StoredModel

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of vLLM's `max_lora_rank`."""
_MAX_IN_BATCH = 8


class VllmAdapter(TypedDict):
    """The fields of vLLM's `LoRAModulePath` for one adapter."""

    name: str
    path: str
    base_model_name: str


class AdapterArguments(TypedDict, total=False):
    """Arguments of vLLM's engine that load adapters beside their base model."""

    enable_lora: bool
    max_loras: int
    max_cpu_loras: int
    max_lora_rank: int
    lora_modules: list[VllmAdapter]


def build_adapter_arguments(base: StoredModel, adapters: Sequence[StoredModel]) -> AdapterArguments:
    """Return the engine's arguments for the adapters of `base`; none without an adapter.

    Raises `ValueError` for an adapter that vLLM does not compute as it was trained.
    """
    if not adapters:
        return {}
    rank = max(_read_rank(adapter) for adapter in adapters)
    for adapter in adapters:
        _check_encoding(adapter, base)
    return {
        "enable_lora": True,
        "max_loras": min(len(adapters), _MAX_IN_BATCH),
        "max_cpu_loras": len(adapters),
        "max_lora_rank": next(allowed for allowed in VLLM_RANKS if allowed >= rank),
        "lora_modules": [
            {"name": adapter.id, "path": str(adapter.path), "base_model_name": base.id}
            for adapter in adapters
        ],
    }


def _read_rank(adapter: StoredModel) -> int:
    """Return an adapter's rank; raise `ValueError` if vLLM cannot apply it."""
    settings = read_object(adapter.path / ADAPTER_CONFIG_NAME)
    if settings.get("use_dora"):
        raise _refuse(adapter, "it was trained by DoRA, expected LoRA or rsLoRA")
    for key in ("rank_pattern", "alpha_pattern"):
        if patterns := settings.get(key):
            shown = str(patterns)[:80]
            raise _refuse(adapter, f"its {key!r} is {shown}, expected one value for all layers")
    rank = int(settings["r"])
    if rank > VLLM_RANKS[-1]:
        raise _refuse(adapter, f"its rank is {rank}, expected at most {VLLM_RANKS[-1]}")
    return rank


def _check_encoding(adapter: StoredModel, base: StoredModel) -> None:
    """Raise `ValueError` if an adapter encodes conversations in another way than its base model."""
    if not (adapter.path / TOKENIZER_NAME).is_file():
        return
    if (part := find_tokenizer_difference(adapter.path, base.path)) is not None:
        raise _refuse(adapter, f"its {part} differs from that of base model {base.id!r}")


def _refuse(adapter: StoredModel, reason: str) -> ValueError:
    return ValueError(
        f"adapter {adapter.id!r} is not given to vLLM: {reason}; run 'tuneserve models merge "
        f"{adapter.id} NEW-ID' and name the merged model"
    )
