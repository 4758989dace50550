"""Checks of the sizes in a model's configuration, before anything is built from them."""

from collections.abc import Iterator
from typing import Any

# Each limit is about 50 times the value of the largest published models. A size below a limit may
# still be too large: the bytes are counted when the model is built without weights.
_LIMITS = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "n_embd": 1 << 20,
    "d_model": 1 << 20,
    "intermediate_size": 1 << 22,
    "moe_intermediate_size": 1 << 22,
    "n_inner": 1 << 22,
    "ffn_dim": 1 << 22,
    "head_dim": 1 << 16,
    "num_hidden_layers": 10_000,
    "num_layers": 10_000,
    "n_layer": 10_000,
    "n_layers": 10_000,
    "num_attention_heads": 1 << 16,
    "num_key_value_heads": 1 << 16,
    "n_head": 1 << 16,
    "num_experts": 1 << 16,
    "num_local_experts": 1 << 16,
    "n_routed_experts": 1 << 16,
    "num_experts_per_tok": 1 << 16,
    "max_position_embeddings": 1 << 30,
    "n_positions": 1 << 30,
}
_MAY_BE_ZERO = frozenset({"num_experts", "num_local_experts", "n_routed_experts"})
_MAX_DEPTH = 16
_MAX_LIST_ITEMS = 100_000


def check_config_sizes(config: dict[str, Any]) -> None:
    """Check every size in a parsed `config.json`, including nested configurations.

    Raises `ValueError` that names the key, the value found and what was expected.
    """
    for key, value in _walk(config, "", 0):
        name = key.rpartition(".")[2]
        limit = _LIMITS.get(name)
        if limit is None or value is None or isinstance(value, list | dict):
            continue  # some architectures have a list with one value per layer
        lowest = 0 if name in _MAY_BE_ZERO else 1
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if not is_count or not lowest <= value <= limit:
            raise ValueError(
                f"config.json: {key} is {str(value)[:40]}; expected an integer from {lowest} to "
                f"{limit:,}"
            )


def _walk(value: Any, key: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield every dotted key path and its value."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"config.json: {key[:80]} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        for name, item in value.items():
            inner = f"{key}.{name}" if key else str(name)
            yield inner, item
            yield from _walk(item, inner, depth + 1)
    elif isinstance(value, list):
        if len(value) > _MAX_LIST_ITEMS:
            raise ValueError(
                f"config.json: {key} has {len(value):,} items; expected at most {_MAX_LIST_ITEMS:,}"
            )
        for item in value:
            yield key, item
            yield from _walk(item, key, depth + 1)
