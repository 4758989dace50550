"""Detection of models in which the rows of a flattened batch influence each other.

Most attention implementations recognise the start of a row by position ids that restart at 0.
Recurrent states, convolutions, and positions that a model counts itself continue from row to row.
"""

from typing import Any

import numpy as np
import torch

from training.checkpoint.reference_logits import spread_tokens
from training.data.text.token_layout import TokenRow
from training.losses.next_token import collate_tokens

_NUM_TOKENS = 12
# As a share of the norm of the logits. The same row's logits in another batch differ by rounding.
_ALONE_TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# If only the other row's tokens differ, the products, their order and their shapes are the same.
# In a mixture of experts, tokens of both rows are multiplied together.
_OTHER_TOLERANCE = 1e-6
_OTHER_TOLERANCES_EXPERTS = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def find_leak(model: Any, config: Any, device: torch.device) -> str | None:
    """Describe how a row influences the next one in a flattened batch; None if it does not.

    `model` is a model, or its DeepSpeed engine; then every worker must call this together.
    """
    vocabulary = int(config.get_text_config().vocab_size)
    first, other, second = (_make_row(number, vocabulary) for number in range(3))
    was_training = model.training
    model.eval()
    with torch.no_grad():
        packed = _compute_logits(model, [first, second], device)
        changed = _compute_logits(model, [other, second], device)
        alone = _compute_logits(model, [second], device)
    model.train(was_training)
    dtype = packed.dtype
    packed, changed, alone = packed.float(), changed.float(), alone.float()
    influence, shift = _compare(packed, changed), _compare(packed, alone)
    tolerance = _OTHER_TOLERANCES_EXPERTS[dtype] if _has_experts(config) else _OTHER_TOLERANCE
    if not influence <= tolerance:
        return f"a row changes the logits of the next one by {influence:.1e} of their norm"
    if not shift <= _ALONE_TOLERANCES[dtype]:
        return f"the logits of a row after another differ by {shift:.1e} of their norm"
    return None


def _make_row(number: int, vocabulary: int) -> TokenRow:
    ids = spread_tokens(_NUM_TOKENS, vocabulary, first=1 + 1000 * number)
    return ids.astype(np.int32), np.ones(_NUM_TOKENS, np.bool_)


def _compute_logits(model: Any, rows: list[TokenRow], device: torch.device) -> torch.Tensor:
    """Return the logits of the last row; shape `[tokens, vocabulary]`."""
    batch = collate_tokens(rows, "packed").to(device)
    logits: torch.Tensor = model(**batch.inputs, use_cache=False).logits
    return logits[0, -_NUM_TOKENS:]


def _compare(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).norm() / second.norm().clamp_min(1e-30))


def _has_experts(config: Any) -> bool:
    text = config.get_text_config()
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(text, name, None) for name in names)
