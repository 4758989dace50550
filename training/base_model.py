"""A base model's tokenizer, configuration, end tokens, context length and revision."""

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
from storage.locks import lock_shared
from templating.arguments import set_arguments
from templating.renderer import TemplateValue
from training.spec import SettingError, TrainingSpec, name_source

# Encoders whose positions begin after the number of the padding token, as in fairseq.
_OFFSET_POSITIONS = frozenset(
    {
        *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm"),
        *("xmod", "data2vec-text", "longformer", "mpnet", "ibert", "esm", "luke", "mluke"),
    }
)
_UNLIMITED_CONTEXT = 1_000_000  # tokenizers report 10^30 if it is unknown


class UnknownModelError(SettingError):
    """The base model does not exist, or it cannot be fine-tuned."""


def load_tokenizer(
    base_model: str, template_arguments: Mapping[str, TemplateValue] | None = None
) -> PreTrainedTokenizerBase:
    """Load a base model's tokenizer for encoding rows; raises `UnknownModelError` without one.

    `template_arguments` become defaults of its chat templates.
    """
    tokenizer = open_tokenizer(base_model)
    set_arguments(tokenizer, template_arguments or {})
    if not tokenizer.is_fast:
        raise UnknownModelError(
            f"base_model {name_source(base_model)!r} has no tokenizer.json, which says where "
            "in the text each token stands; convert its tokenizer with transformers"
        )
    tokenizer.model_max_length = _UNLIMITED_CONTEXT  # this program checks lengths itself
    return tokenizer


def open_tokenizer(base_model: str) -> PreTrainedTokenizerBase:
    """Load a base model's tokenizer unchanged, whether it is fast or not.

    Any client may have created a model in a store, so only settings known to be harmless are used
    from it. The user who starts a training names a folder or an id on the hub, so transformers may
    use everything from there except code. Raises `UnknownModelError` if there is no such model.
    """
    try:
        if _is_stored(base_model):
            return loading.load_tokenizer(Path(base_model))
        with translate_faults():
            return AutoTokenizer.from_pretrained(base_model, trust_remote_code=False)
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc


def load_config(base_model: str) -> PreTrainedConfig:
    """Load a base model's configuration, with the restrictions of `open_tokenizer`.

    Raises `UnknownModelError` if there is no such model.
    """
    try:
        if _is_stored(base_model):
            return loading.load_config(Path(base_model))
        return AutoConfig.from_pretrained(base_model, trust_remote_code=False)
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc


def load_generation_config(base_model: str) -> GenerationConfig | None:
    """Load a base model's generation settings; None if it has none.

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
    """List the tokens at which a model stops generating, its tokenizer's first.

    Serving stops at the same tokens. Raises `UnknownModelError`.
    """
    generation = load_generation_config(base_model)
    if generation is None:
        generation = GenerationConfig.from_model_config(load_config(base_model))
    return list_end_ids(generation, tokenizer)


def find_context_length(base_model: str) -> int:
    """Return the context length of a base model in tokens; raises `UnknownModelError`."""
    config = load_config(base_model)
    length = getattr(config, "max_position_embeddings", None)
    if length and config.model_type in _OFFSET_POSITIONS:
        length -= (config.pad_token_id or 0) + 1
    return int(length) if length else _UNLIMITED_CONTEXT


def choose_max_length(spec: TrainingSpec) -> int:
    """Return the most tokens of one row; raises `SettingError` if the context is shorter."""
    context_length = find_context_length(spec.base_model)
    if spec.max_length is not None and spec.max_length > context_length:
        raise SettingError(
            f"max_length is {spec.max_length}, but {Path(spec.base_model).name!r} has a context of "
            f"{context_length} tokens; lower max_length"
        )
    return spec.max_length or min(context_length, spec.micro_batch_tokens)


def find_revision(base_model: str) -> str | None:
    """Identify the exact content of a base model: a hash of its files, or its commit on the hub.

    Returns None if the commit is unknown. Raises `UnknownModelError`.
    """
    folder = Path(base_model)
    if _is_stored(base_model):
        return f"sha256:{durable.hash_file(folder / durable.MANIFEST_NAME)}"
    if folder.is_dir():
        hashes = [durable.hash_file(path) for path in sorted(folder.glob("*.safetensors"))]
        return f"sha256:{hashlib.sha256(''.join(hashes).encode()).hexdigest()}"
    load_config(base_model)  # downloads it if it is not in the cache
    cached = try_to_load_from_cache(base_model, loading.CONFIG_NAME)
    return Path(cached).parent.name if isinstance(cached, str) else None


@contextmanager
def lock_base_model(base_model: str) -> Iterator[None]:
    """Lock a base model of a model store against deletion while the body runs."""
    lock: AbstractContextManager[object] = nullcontext()
    with suppress(FileNotFoundError, NotADirectoryError):  # another folder, or an id on the hub
        lock = lock_shared(Path(base_model) / durable.MANIFEST_NAME)
    with lock:
        yield


def _is_stored(base_model: str) -> bool:
    """Return whether a base model is in a model store, or was published in the same way."""
    return durable.is_published(Path(base_model))


def _describe_unknown(base_model: str, exc: Exception) -> str:
    return (
        f"base_model {name_source(base_model)!r} is neither the folder of a Hugging Face model "
        f"nor a model id that can be loaded: {str(exc).splitlines()[0][:200]}"
    )
