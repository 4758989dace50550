"""The tokens at which a model stops to generate, as serving and training agree on them."""

from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase


def list_end_ids(
    generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, ...]:
    """List every token id that ends an answer, that of the tokenizer first.

    Those of the generation config and the tokenizer's own: a chat model made from a base model
    may end its turns with a token that the inherited generation config does not know.
    """
    of_generation = read_ids(generation.eos_token_id if generation else None)
    return tuple(dict.fromkeys([*read_ids(tokenizer.eos_token_id), *of_generation]))


def read_ids(value: Any) -> list[int]:
    """Read token ids from a setting that has none, one or a list of them."""
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
