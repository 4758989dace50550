"""Loading of a model directory's configuration and tokenizer from settings known to be harmless.

transformers gets values instead of the directory, so it ignores everything else in the files.
"""

import inspect
import json
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers
from transformers import (
    AutoConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import (
    TOKENIZER_MAPPING_NAMES,
    tokenizer_class_from_name,
)

from model_files.config_settings import clean_config, clean_generation_config
from model_files.json_files import find_object, read_object
from model_files.refused_keys import check_weight_files
from model_files.tokenizer_checks import check_file_size, check_tokenizer
from model_files.tokenizer_faults import translate_faults
from model_files.tokenizer_patterns import FASTER_PATTERNS
from model_files.tokenizer_settings import STANDARD_TOKENS, TOKENIZER_NAME, read_tokenizer_settings
from storage import durable

CONFIG_NAME, GENERATION_NAME = "config.json", "generation_config.json"
_PASSED_ON = (
    *("add_prefix_space", "chat_control_tokens", "chat_template", "clean_up_tokenization_spaces"),
    *("fix_mistral_regex", "max_len", "model_input_names", "model_max_length", "padding_side"),
    *("split_special_tokens", "truncation_side"),
)
# transformers' classes have defaults for these tokens, which the files of early models omit.
_CLASS_DEFAULTS = ("bos_token", "eos_token")


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a directory's tokenizer.json.

    Opens only known files of the directory, and does not instantiate the tokenizer class that the
    directory names. Raises `ValueError` for a tokenizer that cannot be loaded, or whose time or
    memory may grow faster than linearly with a text, and `OSError` for an unreadable file.
    """
    path = directory / TOKENIZER_NAME
    if not path.is_file():
        raise ValueError(
            f"{directory.name!r} has no {TOKENIZER_NAME}; convert its tokenizer: load it with "
            "transformers' AutoTokenizer and save it with save_pretrained"
        )
    check_file_size(path)
    settings = read_tokenizer_settings(directory)
    with translate_faults():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(path),
            name_or_path=str(directory),
            is_local=True,
            local_files_only=True,
            **_list_arguments(settings),
        )
        _replace_slow_patterns(tokenizer.backend_tokenizer)
        check_tokenizer(tokenizer)
        _add_class_defaults(tokenizer, directory, settings)
    return tokenizer


def load_config(directory: Path) -> PreTrainedConfig:
    """Load a directory's config.json without settings that could name a file, code or the hub.

    Raises `ValueError` for a configuration that transformers does not know and for files that would
    make transformers load other weights (`check_weight_files`), and `OSError` for an unreadable
    file.
    """
    check_weight_files(directory)
    with tempfile.TemporaryDirectory(prefix="tuneserve-config-") as copy:
        cleaned = clean_config(read_object(directory / CONFIG_NAME))
        durable.write_json(Path(copy) / CONFIG_NAME, cleaned)
        config = AutoConfig.from_pretrained(copy, local_files_only=True, trust_remote_code=False)
    config.name_or_path = str(directory)
    return config


def load_generation_config(directory: Path) -> GenerationConfig:
    """Load a directory's generation_config.json, or else the generation settings of config.json.

    Raises `ValueError` for an invalid file, and `OSError` for an unreadable one.
    """
    settings = find_object(directory / GENERATION_NAME)
    if settings is None:
        config = clean_config(read_object(directory / CONFIG_NAME))
        return GenerationConfig.from_model_config(config)
    return GenerationConfig.from_dict(clean_generation_config(settings))


def find_class_defaults(
    directory: Path, settings: Mapping[str, Any], named: Collection[str], tokenizer: Tokenizer
) -> dict[str, str]:
    """Return BOS and EOS of the tokenizer's class, except those in `named` and unknown tokens.

    `settings` are those of `read_tokenizer_settings`; `tokenizer` is that of the directory.
    """
    missing = [name for name in _CLASS_DEFAULTS if name not in named]
    if not missing:
        return {}
    model_type = str((find_object(directory / CONFIG_NAME) or {}).get("model_type"))
    class_name = settings.get("tokenizer_class") or TOKENIZER_MAPPING_NAMES.get(model_type)
    class_name = str(class_name).removesuffix("Fast")
    if class_name not in TOKENIZER_MAPPING_NAMES.values():
        return {}
    found = tokenizer_class_from_name(class_name)
    if not (inspect.isclass(found) and issubclass(found, PreTrainedTokenizerBase)):
        return {}  # a library that the class needs is not installed
    parameters = inspect.signature(found).parameters
    defaults = {name: parameters[name].default for name in missing if name in parameters}
    return {
        name: default
        for name, default in defaults.items()
        if isinstance(default, str) and tokenizer.token_to_id(default) is not None
    }


def _list_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer's constructor arguments, derived from settings as transformers does."""
    arguments = {key: settings[key] for key in _PASSED_ON if key in settings}
    extra = settings.get("extra_special_tokens", [])
    if isinstance(extra, list):
        arguments["extra_special_tokens"] = [_make_token(token) for token in extra]
    added = {
        int(token_id): AddedToken(**token)
        for token_id, token in settings.get("added_tokens_decoder", {}).items()
    }
    if added:
        arguments["added_tokens_decoder"] = added
    by_content = {token.content: token for token in added.values()}
    others = {}
    for key, token in _list_named_tokens(settings).items():
        if key in STANDARD_TOKENS:
            arguments[key] = by_content.get(str(token), token)
        else:
            others[key] = token
    if others:
        arguments["model_specific_special_tokens"] = others
    return arguments


def _list_named_tokens(settings: Mapping[str, Any]) -> dict[str, str | AddedToken]:
    """Return the named tokens by name, both standard and model-specific ones."""
    named = dict(settings.get("model_specific_special_tokens", {}))
    extra = settings.get("extra_special_tokens")
    if isinstance(extra, dict):
        named.update(extra)
    named |= {
        key: value
        for key, value in settings.items()
        if key.endswith("_token") and isinstance(value, str | dict)
    }
    return {key: _make_token(value) for key, value in named.items()}


def _make_token(value: Any) -> str | AddedToken:
    if isinstance(value, str):
        return value
    flags = {key: flag for key, flag in value.items() if key != "__type"}
    return AddedToken(**{"special": True, **flags})


def _replace_slow_patterns(backend: Any) -> None:
    """Replace patterns of published tokenizers that are slow on some texts by equivalent ones."""
    steps = backend.pre_tokenizer
    if not isinstance(steps, pre_tokenizers.Sequence):
        return
    for place, step in enumerate(json.loads(steps.__getstate__())["pretokenizers"]):
        faster = FASTER_PATTERNS.get(str(step.get("pattern", {}).get("Regex")))
        if faster is not None and step["behavior"] == "Isolated" and not step["invert"]:
            steps[place] = pre_tokenizers.Split(Regex(faster), "isolated")


def _add_class_defaults(
    tokenizer: PreTrainedTokenizerFast, directory: Path, settings: Mapping[str, Any]
) -> None:
    """Set missing BOS and EOS tokens to the defaults of the class, if the vocabulary has them."""
    named = [name for name in _CLASS_DEFAULTS if getattr(tokenizer, name) is not None]
    backend = tokenizer.backend_tokenizer
    for name, token in find_class_defaults(directory, settings, named, backend).items():
        tokenizer.add_special_tokens({name: token})
