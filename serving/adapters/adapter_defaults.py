"""The tokenizer and the defaults of generation in an adapter's directory.

The replica's process imports it, so it imports torch and transformers only in a function.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from serving.engine.messages import ModelFacts
from serving.errors import EngineDeadError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TOKENIZER_NAME = "tokenizer.json"
_TOKENIZER_FILES = (
    *(_TOKENIZER_NAME, "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json"),
)


class AdapterDefaults(NamedTuple):
    """What an adapter has beside its weights; `tokenizer` is None if it is its base model's."""

    facts: ModelFacts
    tokenizer: "PreTrainedTokenizerBase | None"


def read_defaults(path: Path, base_path: Path, facts: ModelFacts) -> AdapterDefaults:
    """Read the tokenizer of an adapter and its defaults of generation, where it has its own.

    `facts` are those of its base model. Raises `EngineDeadError` if the files cannot be read, or
    the tokenizer has ids that the base model lacks.
    """
    from model_files.end_ids import list_end_ids
    from model_files.tokenizer_checks import check_vocabulary
    from serving.loading.generation_defaults import find_sampling
    from serving.loading.loading import load_own_generation_config, load_tokenizer

    if not (path / _TOKENIZER_NAME).is_file():
        return AdapterDefaults(facts, None)
    tokenizer = load_tokenizer(path)
    try:
        check_vocabulary(tokenizer, facts.vocab_size)
    except ValueError as exc:
        raise EngineDeadError(f"adapter {path.name!r} cannot be loaded: {exc}") from exc
    if (own := load_own_generation_config(path)) is not None:
        end_ids = tuple(sorted(list_end_ids(own, tokenizer)))
        facts = replace(facts, eos_ids=end_ids, sampling=find_sampling(own))
    is_same = all(_read(path / name) == _read(base_path / name) for name in _TOKENIZER_FILES)
    return AdapterDefaults(facts, None if is_same else tokenizer)


def _read(path: Path) -> bytes | None:
    """Return the content of a file; None if there is none."""
    return path.read_bytes() if path.is_file() else None
