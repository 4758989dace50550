"""What a base model says about rows: its tokenizer and how many tokens it has positions for."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from model_files import loading
from model_files.end_ids import list_end_ids
from model_files.tokenizer_faults import translate_faults
from storage import durable
from storage.locks import hold_shared
from templating.arguments import set_arguments
from templating.renderer import TemplateValue
from training.spec import SettingError, TrainingSpec, name_source

_UNLIMITED_CONTEXT = 1_000_000  # tokenizers say 10^30 when they do not know


class UnknownModelError(SettingError):
    """There is no such base model, or it is not one that can be fine-tuned."""


def load_tokenizer(
    base_model: str, template_arguments: Mapping[str, TemplateValue] | None = None
) -> PreTrainedTokenizerBase:
    """Load a base model's tokenizer for rows; raises `UnknownModelError` if there is none.

    `template_arguments` become defaults of its chat templates.
    """
    tokenizer = open_tokenizer(base_model)
    set_arguments(tokenizer, template_arguments or {})
    if not tokenizer.is_fast:
        raise UnknownModelError(
            f"base_model {name_source(base_model)!r} has no tokenizer.json, which says where "
            "in the text each token stands; convert its tokenizer with transformers"
        )
    tokenizer.model_max_length = _UNLIMITED_CONTEXT  # lengths are ours to check
    return tokenizer


def open_tokenizer(base_model: str) -> PreTrainedTokenizerBase:
    """Load a base model's tokenizer as it is, of any kind.

    Of a model in a store only what is known to be harmless is used: anybody may have made it. A
    folder or an id on the hub is named by whoever starts the training, and transformers may follow
    all that it says but code. Raises `UnknownModelError` if there is no such model.
    """
    try:
        if _is_stored(base_model):
            return loading.load_tokenizer(Path(base_model))
        with translate_faults():
            return AutoTokenizer.from_pretrained(base_model, trust_remote_code=False)
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc


def load_config(base_model: str) -> PreTrainedConfig:
    """Load a base model's configuration; of a model in a store as `open_tokenizer` does.

    Raises `UnknownModelError` if there is no such model.
    """
    try:
        if _is_stored(base_model):
            return loading.load_config(Path(base_model))
        return AutoConfig.from_pretrained(base_model, trust_remote_code=False)
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc


def load_generation_config(base_model: str) -> GenerationConfig | None:
    """Load what a base model says of generating; None if it says nothing.

    Raises `UnknownModelError` for a model in a store whose file cannot be read.
    """
    try:
        if _is_stored(base_model):
            return loading.load_generation_config(Path(base_model))
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc
    try:
        return GenerationConfig.from_pretrained(base_model)
    except OSError:
        return None


def find_end_ids(base_model: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """List the tokens at which a model stops to generate, that of its tokenizer first.

    Serving stops at the same ones. Raises `UnknownModelError`.
    """
    generation = load_generation_config(base_model)
    if generation is None:
        generation = GenerationConfig.from_model_config(load_config(base_model))
    return list_end_ids(generation, tokenizer)


def find_context_length(base_model: str) -> int:
    """Tokens that a base model's positions allow; raises `UnknownModelError`."""
    length = getattr(load_config(base_model), "max_position_embeddings", None)
    return int(length) if length else _UNLIMITED_CONTEXT


def choose_max_length(spec: TrainingSpec) -> int:
    """Tokens that one row may have; raises `SettingError` if the model has fewer positions."""
    context_length = find_context_length(spec.base_model)
    if spec.max_length is not None and spec.max_length > context_length:
        raise SettingError(
            f"max_length is {spec.max_length}, but {Path(spec.base_model).name!r} has a context of "
            f"{context_length} tokens; lower max_length"
        )
    return spec.max_length or min(context_length, spec.micro_batch_tokens)


def find_revision(base_model: str) -> str | None:
    """Name the exact content of a base model: a hash of its files, or its commit on the hub.

    None where the hub does not say. Raises `UnknownModelError`.
    """
    folder = Path(base_model)
    if _is_stored(base_model):
        return f"sha256:{durable.hash_file(folder / durable.MANIFEST_NAME)}"
    if folder.is_dir():
        hashes = [durable.hash_file(path) for path in sorted(folder.glob("*.safetensors"))]
        return f"sha256:{hashlib.sha256(''.join(hashes).encode()).hexdigest()}"
    load_config(base_model)  # fetches it where it is not in the cache
    cached = try_to_load_from_cache(base_model, loading.CONFIG_NAME)
    return Path(cached).parent.name if isinstance(cached, str) else None


@contextmanager
def hold_base_model(base_model: str) -> Iterator[None]:
    """Keep a base model that lies in a model store from being deleted while the body runs."""
    held: AbstractContextManager[object] = nullcontext()
    with suppress(FileNotFoundError, NotADirectoryError):  # another folder, or the hub's
        held = hold_shared(Path(base_model) / durable.MANIFEST_NAME)
    with held:
        yield


def _is_stored(base_model: str) -> bool:
    """Whether a base model lies in a store of models, or was published as those are."""
    return durable.is_published(Path(base_model))


def _describe_unknown(base_model: str, exc: Exception) -> str:
    return (
        f"base_model {name_source(base_model)!r} is neither the folder of a Hugging Face model "
        f"nor a model id that can be loaded: {str(exc).splitlines()[0][:200]}"
    )
