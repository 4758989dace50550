"""Inspection of a model: builds it on the meta device and compares it with its weight files.

The configuration of an untrusted model determines how much time and memory building takes, so this
runs only in a process with limits: `serving.store.import_check` when a model is imported, and a
fork of the fork server before it is loaded.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from model_files.architecture import load_on_meta, make_meta_tensors
from model_files.loading import load_config
from model_files.tokenizer_checks import check_vocabulary
from model_files.tokenizer_faults import translate_faults
from model_files.tokenizer_settings import TOKENIZER_NAME
from model_files.weight_headers import read_weight_headers
from serving.loading.config_sizes import check_config_sizes
from serving.loading.loading import check_loading_report, load_tokenizer
from serving.loading.model_memory import ModelMemory
from serving.served_task import DEFAULT_TASK, find_served_task
from templating.literal_text import LiteralText
from templating.renderer import ChatTemplates

_SAMPLE_TEXT = "Hello, world! 1 + 1 = 2.\nGr\u00fc\u00dfe, \u4f60\u597d"


def inspect_directory(directory: Path) -> ModelMemory:
    """Check a directory's weights and tokenizer, and count the memory of both.

    Raises the errors of `inspect_model` and `try_tokenizer`.
    """
    memory = inspect_model(directory)
    return memory.model_copy(update={"tokenizer_bytes": try_tokenizer(directory)})


def inspect_model(directory: Path, task: str = DEFAULT_TASK) -> ModelMemory:
    """Check that a directory's weights match its config, and count their memory.

    Only weights that the task uses are checked. The memory of the tokenizer is not counted. No
    weight values are read and no code of the model runs (`model_files.architecture`). Raises
    `EngineDeadError` for weights that are missing, unexpected or of another shape, and any error of
    transformers for an invalid config.
    """
    check_config_sizes(json.loads((directory / "config.json").read_bytes()))
    config = load_config(directory)
    tensors = make_meta_tensors(read_weight_headers(directory))
    served = find_served_task(task)
    model, report = load_on_meta(config, tensors, served.model_class)
    check_loading_report(directory.name, served.select_mismatches(report, model))
    generates = served.answers == "text"
    return ModelMemory(
        weight_bytes=sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()]),
        tied_head_bytes=_measure_tied_head(model) if generates else 0,
        cache_token_bytes=_measure_cache_token(model.config.get_text_config(), model.dtype)
        if generates
        else 0,
    )


def try_tokenizer(directory: Path, *, is_for_chat: bool = True) -> int:
    """Load and try a directory's tokenizer; return the bytes of memory that it needs.

    With `is_for_chat`, also finds the control tokens of its chat templates. Raises
    `EngineDeadError` if the tokenizer cannot be loaded, and `ValueError` if it cannot encode or has
    tokens beyond the model's vocabulary.
    """
    vocab_size = int(load_config(directory).get_text_config().vocab_size)
    before = _measure_resident()
    tokenizer = load_tokenizer(directory)
    literal_text = LiteralText(tokenizer) if is_for_chat else None
    if literal_text is not None:
        literal_text.prepare(ChatTemplates.of(tokenizer).texts)
    num_bytes = max(_measure_resident() - before, (directory / TOKENIZER_NAME).stat().st_size)
    with translate_faults():
        check_vocabulary(tokenizer, vocab_size)
        tokenizer.decode(tokenizer(_SAMPLE_TEXT)["input_ids"])
        if literal_text is not None:
            literal_text.encode([_SAMPLE_TEXT], [{}])
    return num_bytes


def convert_tokenizer(directory: Path) -> None:
    """Write a tokenizer.json from the files of a tokenizer in an older format.

    The settings of the directory must have been cleaned before, since the tokenizer class reads
    them. Raises `ValueError` for a tokenizer that cannot be converted.
    """
    with translate_faults():
        tokenizer: Any = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        if not tokenizer.is_fast:
            raise ValueError(
                f"{directory.name!r} has no {TOKENIZER_NAME}, and its tokenizer "
                f"{type(tokenizer).__name__} cannot be converted; use a model that has one"
            )
        tokenizer.backend_tokenizer.save(str(directory / TOKENIZER_NAME))


def _measure_resident() -> int:
    """Return the resident memory of this process in bytes."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def _measure_tied_head(model: Any) -> int:
    """Return the bytes of the output head if its weight is tied to the embedding, else 0."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embedding is None or head.weight is not embedding.weight:
        return 0
    return int(head.weight.nbytes)


def _measure_cache_token(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of one token in the cache: a key and a value per layer and head.

    This is what the cache of transformers' continuous batching allocates. Raises `ValueError` for
    sizes that are not positive.
    """
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    sizes = {
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_size,
    }
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"config.json: {name} comes to {size}; expected a positive integer")
    return int(2 * config.num_hidden_layers * num_kv_heads * head_size * dtype.itemsize)
