"""Strict loading of the model to train, and its loss."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the conventional name

from training.batching import BatchLayout
from training.collate import IGNORED_LABEL, MicroBatch
from training.spec import TrainingSpec

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

_CPU = torch.device("cpu")
_FLATTENED_ARCHITECTURES = frozenset(
    {"gemma", "gemma2", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}
)


class WeightsError(RuntimeError):
    """The weights in the base model's files differ from those of its architecture."""


def load_model(
    spec: TrainingSpec, layout: BatchLayout = "padded", device: torch.device = _CPU
) -> torch.nn.Module:
    """Load the base model; raises `WeightsError` unless its weights match its architecture.

    Raises `UnknownModelError` if there is no such model.
    """
    from transformers import AutoModelForCausalLM

    from training.base_model import load_config, load_generation_config

    attention = {}
    if layout == "flattened" and has_varlen_kernel(spec, device):
        attention["attn_implementation"] = "flash_attention_2"
    model, info = AutoModelForCausalLM.from_pretrained(
        spec.base_model,
        config=load_config(spec.base_model),
        generation_config=load_generation_config(spec.base_model),
        dtype=DTYPES[spec.precision],
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **attention,
    )
    if faults := find_weight_faults(info):
        raise WeightsError(
            f"the weights of {Path(spec.base_model).name!r} do not fit its architecture: {faults}; "
            "training would start from random values in their place"
        )
    model.config.use_cache = False
    if spec.activation_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model  # type: ignore[no-any-return]


def find_hidden_size(base_model: str) -> int:
    """Return the width of a model's hidden states."""
    from training.base_model import load_config

    return int(load_config(base_model).get_text_config().hidden_size)


def find_weight_faults(loading_info: Any) -> dict[str, list[str]]:
    """Return the non-empty lists of transformers' loading report; empty if every weight fits."""
    return {kind: sorted(str(key) for key in keys) for kind, keys in loading_info.items() if keys}


def choose_layout(spec: TrainingSpec, device: torch.device) -> BatchLayout:
    """Resolve 'auto': flattened rows where attention has a kernel for them, else padded rows.

    Dense attention over a flattened batch computes every row against every other: on a CPU such
    batches ran at 0.59 of the speed of padded ones of similar length. Rows are flattened only for
    architectures known to carry no other state from row to row, such as that of a convolution.
    """
    from training.base_model import load_config

    if spec.batch_layout != "auto":
        return spec.batch_layout
    is_known = load_config(spec.base_model).model_type in _FLATTENED_ARCHITECTURES
    return "flattened" if is_known and has_varlen_kernel(spec, device) else "padded"


def has_varlen_kernel(spec: TrainingSpec, device: torch.device) -> bool:
    """Return whether a variable-length attention kernel exists: on a GPU, in half precision."""
    from transformers.utils import is_flash_attn_2_available

    is_half = spec.precision in ("bf16", "fp16")
    return device.type == "cuda" and is_half and bool(is_flash_attn_2_available())


def sum_loss(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Return the cross entropy summed over the batch's learned tokens, in fp32; shape `[]`.

    Logits are computed only at the positions that predict a learned token: the output head is the
    largest matrix product of a small model, and its logits are the largest tensor of any model.
    """
    learned = batch.labels != IGNORED_LABEL  # [rows, tokens]
    learned[0, 0] |= ~learned.any()  # an empty selection would have no gradient to wait for
    with _select_positions(model.get_output_embeddings(), learned):
        logits = model(**batch.inputs).logits  # [num_selected, vocabulary]
    if logits.dim() == 3:  # a model without a separate module for its head
        logits = logits[learned]
    return F.cross_entropy(
        logits.float(), batch.labels[learned], ignore_index=IGNORED_LABEL, reduction="sum"
    )


@contextmanager
def _select_positions(head: torch.nn.Module | None, chosen: torch.Tensor) -> Iterator[None]:
    """Pass only the chosen positions of the hidden states to a model's output head.

    `chosen` has the shape `[rows, tokens]`, the head's input `[rows, tokens, hidden]`.
    """
    if head is None:
        yield
        return

    def select(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (inputs[0][chosen],)

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()
