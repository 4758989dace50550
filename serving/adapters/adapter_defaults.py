"""The tokenizer and the defaults of generation in an adapter's directory.

The replica's process imports it, so it imports torch and transformers only in a function.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from model_files.tokenizer_settings import TOKENIZER_NAME
from serving.engine.messages import ModelFacts
from serving.errors import EngineDeadError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AdapterDefaults(NamedTuple):
    """What an adapter has beside its weights; `tokenizer` is None if it is its base model's."""

    facts: ModelFacts
    tokenizer: "PreTrainedTokenizerBase | None"


def read_defaults(
    path: Path, base_path: Path, facts: ModelFacts, base_tokenizer: "PreTrainedTokenizerBase"
) -> AdapterDefaults:
    """Read the tokenizer of an adapter and its defaults of generation, where it has its own.

    `facts` and `base_tokenizer` are those of its base model. Raises `EngineDeadError` if the files
    cannot be read, or the tokenizer has ids that the base model lacks.
    """
    from model_files.end_ids import list_end_ids, read_ids
    from serving.loading.generation_defaults import find_sampling
    from serving.loading.loading import load_own_generation_config

    if not (path / TOKENIZER_NAME).is_file():
        return AdapterDefaults(facts, None)
    own_tokenizer = _load_own(path, base_path, facts)
    tokenizer = own_tokenizer or base_tokenizer
    if (own := load_own_generation_config(path)) is not None:
        end_ids = {*list_end_ids(own, tokenizer)}
        facts = replace(facts, sampling=find_sampling(own))
    else:  # PEFT writes none, also for a tokenizer with another end token
        end_ids = {*facts.eos_ids, *read_ids(tokenizer.eos_token_id)}
    return AdapterDefaults(replace(facts, eos_ids=tuple(sorted(end_ids))), own_tokenizer)


def _load_own(path: Path, base_path: Path, facts: ModelFacts) -> "PreTrainedTokenizerBase | None":
    """Load the tokenizer of an adapter; None if it is its base model's."""
    from model_files.same_tokenizer import find_tokenizer_difference
    from model_files.tokenizer_checks import check_vocabulary
    from serving.loading.loading import load_tokenizer

    try:
        if find_tokenizer_difference(path, base_path) is None:
            return None
        tokenizer = load_tokenizer(path)
        check_vocabulary(tokenizer, facts.vocab_size)
    except (OSError, ValueError) as exc:
        raise EngineDeadError(f"adapter {path.name!r} cannot be loaded: {exc}") from exc
    return tokenizer
