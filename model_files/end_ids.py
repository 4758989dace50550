"""The tokens at which a model stops generating, used by both serving and training."""

from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase


def list_end_ids(
    generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """List every token id that ends an answer: that of the tokenizer, then the generation config's.

    Both are needed: a chat model made from a base model may end its turns with a token that the
    inherited generation config does not list.
    """
    of_generation = read_ids(generation.eos_token_id if generation else None)
    return tuple(dict.fromkeys([*read_ids(tokenizer.eos_token_id), *of_generation]))


def read_ids(value: Any) -> list[int]:
    """Return the token ids of a setting that is None, one id or a list of ids."""
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
