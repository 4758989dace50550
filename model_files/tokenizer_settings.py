"""The settings of a model's tokenizer, limited to keys that are known to be harmless.

transformers passes every key of `tokenizer_config.json` to the class that the same file names, and
some of these classes open a value as a file. Therefore only listed keys are passed on.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_files.json_files import find_object

TOKENIZER_NAME = "tokenizer.json"
SETTINGS_NAME, SPECIAL_TOKENS_NAME = "tokenizer_config.json", "special_tokens_map.json"
MAX_TOKEN_CHARACTERS = 256
MAX_ADDED_TOKENS = 70_000
_MAX_EXTRA_TOKENS = 2_048  # transformers compares each of them with all others
_MAX_TEMPLATES = 16
_MAX_TEMPLATE_CHARACTERS = 1_000_000
_MAX_TEMPLATE_BYTES = 16 << 20
_MAX_SPECIAL_TOKENS_BYTES = 1 << 20  # the file usually has a dozen names

STANDARD_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_TOKEN_KEY = re.compile(r"(?!add_)[a-z][a-z0-9_]{0,62}_token")
_BOOLS = frozenset(
    {
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
        "clean_up_tokenization_spaces",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
        "do_basic_tokenize",
        "do_lower_case",
        "fix_mistral_regex",
        "is_local",
        "keep_accents",
        "legacy",
        "local_files_only",
        "remove_space",
        "spaces_between_special_tokens",
        "split_special_tokens",
        "strip_accents",
        "tokenize_chinese_chars",
        "trim_offsets",
        "use_default_system_prompt",
    }
)
_NUMBERS = frozenset({"model_max_length", "max_len"})
_SIDES = frozenset({"padding_side", "truncation_side"})
_EXTRA_TOKENS = ("extra_special_tokens", "additional_special_tokens")
_TOKEN_FLAGS = frozenset({"lstrip", "rstrip", "normalized", "single_word", "special"})
_INPUT_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
# Names of transformers' tokenizer classes except `AutoTokenizer`, which would read the file again.
_CLASS = re.compile(
    r"(?!Auto)[A-Z]\w{0,60}Tokenizer(Fast)?|PreTrainedTokenizerFast|TokenizersBackend"
)


def read_tokenizer_settings(directory: Path) -> dict[str, Any]:
    """Read the tokenizer settings of a model directory, merged from its files as in transformers.

    The result has only keys that are known to be harmless. Its chat template is the one that
    transformers would use: a string, or a dict of strings by name. Raises `ValueError` for a file
    that is too large or is not a JSON object, and for a value of the wrong type.
    """
    settings = clean_tokenizer_settings(find_object(directory / SETTINGS_NAME) or {})
    if "added_tokens_decoder" not in settings:  # saved by an early version of transformers
        found = find_object(directory / SPECIAL_TOKENS_NAME, _MAX_SPECIAL_TOKENS_BYTES)
        _merge_special_tokens(settings, clean_special_tokens(found or {}))
    if additional := settings.pop("additional_special_tokens", None):
        settings.setdefault("extra_special_tokens", additional)
    if (templates := _read_template_files(directory)) is not None:
        settings["chat_template"] = templates
    elif isinstance(own := settings.get("chat_template"), list):
        settings["chat_template"] = {one["name"]: one["template"] for one in own}
    return settings


def clean_tokenizer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the harmless keys of a parsed `tokenizer_config.json`.

    Raises `ValueError` that names a key whose value has the wrong type or is too large.
    """
    cleaned = {}
    for key, value in settings.items():
        if value is not None and (kept := _clean(SETTINGS_NAME, key, value)) is not None:
            cleaned[key] = kept
    return cleaned


def clean_special_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens in a parsed `special_tokens_map.json`.

    Raises `ValueError` as `clean_tokenizer_settings` does.
    """
    cleaned = {}
    for key, value in settings.items():
        is_token = key in _EXTRA_TOKENS or _TOKEN_KEY.fullmatch(key)
        if is_token and value is not None:
            kept = _clean(SPECIAL_TOKENS_NAME, key, value)
            if kept is not None:
                cleaned[key] = kept
    return cleaned


def list_templates(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """List the chat templates of settings that `read_tokenizer_settings` returned."""
    own = settings.get("chat_template")
    if isinstance(own, dict):
        return tuple(text for text in own.values() if text)
    return (own,) if own else ()


def name_token(value: Any) -> str:
    """Return the text of a token, which is a string or an object in the settings."""
    return str(value["content"] if isinstance(value, dict) else value)


def _merge_special_tokens(settings: dict[str, Any], tokens: Mapping[str, Any]) -> None:
    for key, value in tokens.items():
        own = settings.get("extra_special_tokens")
        if key == "extra_special_tokens" and isinstance(own, list) and isinstance(value, list):
            settings[key] = [*own, *(token for token in value if token not in own)]
        elif key != "additional_special_tokens" or not own:
            settings[key] = value


def _clean(file: str, key: str, value: Any) -> Any:
    """Return the harmless part of a value, or None; raise `ValueError` for a wrong type."""
    if key in _EXTRA_TOKENS or key == "model_specific_special_tokens":
        return _clean_extra_tokens(file, key, value)
    if _TOKEN_KEY.fullmatch(key):
        return _clean_token(file, key, value)
    if key == "added_tokens_decoder":
        return _clean_added_tokens(file, key, value)
    if key == "chat_template":
        return _clean_templates(file, value)
    if key in _BOOLS:
        return _expect(file, key, value, isinstance(value, bool), "true or false")
    if key in _NUMBERS:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return _expect(file, key, value, is_number, "a number")
    if key in _SIDES:
        return _expect(file, key, value, value in ("left", "right"), "'left' or 'right'")
    if key in ("model_input_names", "chat_control_tokens"):
        return _clean_names(file, key, value)
    is_class = key == "tokenizer_class" and isinstance(value, str) and _CLASS.fullmatch(value)
    return value if is_class or (key, value) == ("backend", "tokenizers") else None


def _expect(file: str, key: str, value: Any, is_right: bool, expected: str) -> Any:
    if not is_right:
        raise ValueError(f"{file}: {key} is {str(value)[:80]!r}; expected {expected}")
    return value


def _clean_token(file: str, key: str, value: Any) -> Any:
    """Return a token as a string, or as an object with its known flags."""
    content = value.get("content") if isinstance(value, dict) else value
    is_token = isinstance(content, str) and len(content) <= MAX_TOKEN_CHARACTERS
    expected = f"a token of at most {MAX_TOKEN_CHARACTERS} characters"
    _expect(file, key, value, is_token, expected)
    if not isinstance(value, dict):
        return value
    flags = {name: flag for name, flag in value.items() if name in _TOKEN_FLAGS}
    is_flags = all(isinstance(flag, bool) for flag in flags.values())
    _expect(file, key, value, is_flags, "flags that are true or false")
    kind = {"__type": "AddedToken"} if value.get("__type") == "AddedToken" else {}
    return {**kind, "content": content, **flags}


def _clean_extra_tokens(file: str, key: str, value: Any) -> Any:
    kinds = list | dict if key in _EXTRA_TOKENS else dict
    is_listed = isinstance(value, kinds) and len(value) <= _MAX_EXTRA_TOKENS
    expected = f"a list or an object of at most {_MAX_EXTRA_TOKENS:,} tokens"
    _expect(file, key, value, is_listed, expected)
    if isinstance(value, list):
        return [_clean_token(file, key, token) for token in value]
    return {
        name: _clean_token(file, name, token)
        for name, token in value.items()
        if _TOKEN_KEY.fullmatch(name)
    }


def _clean_added_tokens(file: str, key: str, value: Any) -> dict[str, Any]:
    is_object = isinstance(value, dict) and len(value) <= MAX_ADDED_TOKENS
    expected = f"an object of at most {MAX_ADDED_TOKENS:,} tokens by their ids"
    _expect(file, key, value, is_object, expected)
    cleaned = {}
    for token_id, token in value.items():
        is_entry = token_id.isdecimal() and len(token_id) <= 9 and isinstance(token, dict)
        _expect(file, f"{key}.{token_id[:20]}", token, is_entry, "a token under its id")
        cleaned[token_id] = _clean_token(file, f"{key}.{token_id}", token)
        cleaned[token_id].pop("__type", None)  # transformers expects it everywhere but here
    return cleaned


def _clean_templates(file: str, value: Any) -> Any:
    """Return a template, or several as a list or a dict; None if there is none."""
    if isinstance(value, list):
        kept = [
            {"name": one["name"], "template": one["template"]}
            for one in value
            if isinstance(one, dict)
            and isinstance(one.get("name"), str)
            and isinstance(one.get("template"), str)
        ]
        _clean_templates(file, {str(number): one["template"] for number, one in enumerate(kept)})
        return kept or None
    if isinstance(value, dict):
        templates = {name: text for name, text in value.items() if isinstance(text, str)}
        _check_count(len(templates))
        for text in templates.values():
            _check_template(text)
        return templates or None
    _expect(file, "chat_template", value, isinstance(value, str), "a string, or several by name")
    _check_template(value)
    return str(value)


def _clean_names(file: str, key: str, value: Any) -> Any:
    limit = MAX_ADDED_TOKENS if key == "chat_control_tokens" else 16
    is_listed = isinstance(value, list) and len(value) <= limit
    _expect(file, key, value, is_listed, f"a list of at most {limit:,} names")
    for name in value:
        is_name = isinstance(name, str) and len(name) <= MAX_TOKEN_CHARACTERS
        if key == "model_input_names":
            is_name = is_name and _INPUT_NAME.fullmatch(name) is not None
        _expect(file, key, name, is_name, "a name")
    return value


def _read_template_files(directory: Path) -> str | dict[str, str] | None:
    """Read the template files, which take precedence over templates in the settings."""
    files = {"default": directory / "chat_template.jinja"}
    more = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    files.update((file.stem, file) for file in more)
    files = {name: file for name, file in files.items() if file.is_file()}
    _check_count(len(files))
    templates = {name: _read_template(file) for name, file in files.items()}
    return templates["default"] if templates.keys() == {"default"} else templates or None


def _read_template(path: Path) -> str:
    size_bytes = path.stat().st_size
    if size_bytes > _MAX_TEMPLATE_BYTES:
        raise ValueError(
            f"{path.name} has {size_bytes:,} bytes; expected at most {_MAX_TEMPLATE_BYTES:,}"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ValueError(f"{path.name} is not text in UTF-8: {exc}") from exc
    _check_template(text)
    return text


def _check_count(num_templates: int) -> None:
    if num_templates > _MAX_TEMPLATES:
        raise ValueError(
            f"the model has {num_templates:,} chat templates, expected at most {_MAX_TEMPLATES}"
        )


def _check_template(text: str) -> None:
    if len(text) > _MAX_TEMPLATE_CHARACTERS:
        raise ValueError(
            f"a chat template has {len(text):,} characters, expected at most "
            f"{_MAX_TEMPLATE_CHARACTERS:,}"
        )
