import json
from pathlib import Path
from typing import Any

import pytest

from model_files.tokenizer_settings import (
    clean_special_tokens,
    clean_tokenizer_settings,
    list_templates,
    read_tokenizer_settings,
)

TOKEN = {"__type": "AddedToken", "content": "<x>", "lstrip": True, "special": True}


def test_settings_of_chat_model_are_kept() -> None:
    settings = {
        "add_bos_token": True,
        "backend": "tokenizers",
        "is_local": True,
        "added_tokens_decoder": {"3": {"content": "<x>", "normalized": False, "special": True}},
        "additional_special_tokens": ["<x>", TOKEN],
        "bos_token": "<s>",
        "chat_template": [{"name": "default", "template": "a"}, {"name": "tools", "template": "b"}],
        "clean_up_tokenization_spaces": False,
        "eos_token": TOKEN,
        "extra_special_tokens": {"image_token": "<image>"},
        "legacy": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 1e30,
        "padding_side": "left",
        "tokenizer_class": "LlamaTokenizerFast",
    }
    assert clean_tokenizer_settings(settings) == settings


def test_other_keys_are_removed() -> None:
    settings = {
        "vocab": "/etc/passwd",
        "merges": {"a": 1},
        "sp_model_kwargs": {"model_file": "/etc/passwd"},
        "tokenizer_class": "AutoModelForCausalLM",
        "name_or_path": "a/b",
        "processor_class": "X",
        "extra_special_tokens": {"chat_template": "x"},
        "Big_token": "x",
        "eos_token": None,
        "_x": 1,
    }
    assert clean_tokenizer_settings(settings) == {"extra_special_tokens": {}}
    assert clean_tokenizer_settings({"tokenizer_class": "AutoTokenizer"}) == {}
    assert clean_special_tokens({"eos_token": "<x>", "vocab_file": "x"}) == {"eos_token": "<x>"}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("eos_token", 5, " is '5'; expected a token of at most 256 characters"),
        ("eos_token", "x" * 257, " is 'xxx"),
        (
            "eos_token",
            {"content": "x", "lstrip": 1},
            " is .* expected flags that are true or false",
        ),
        ("pad_token", {"content": None}, " is .* expected a token"),
        ("extra_special_tokens", ["x"] * 2049, " is .* a list or an object of at most 2,048"),
        ("extra_special_tokens", "x", " is 'x'; expected a list or an object"),
        ("added_tokens_decoder", ["x"], " is .* an object of at most 70,000 tokens by"),
        ("added_tokens_decoder", {"x": {"content": "x"}}, r"\.x is .* a token under its id"),
        ("added_tokens_decoder", {"1": "x"}, r"\.1 is 'x'; expected a token under its id"),
        ("legacy", "yes", " is 'yes'; expected true or false"),
        ("model_max_length", True, " is 'True'; expected a number"),
        ("padding_side", "up", " is 'up'; expected 'left' or 'right'"),
        ("model_input_names", ["../x"], " is '../x'; expected a name"),
        ("chat_template", 3, " is '3'; expected a string"),
    ],
)
def test_value_of_wrong_type_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^tokenizer_config.json: {key}{message}"):
        clean_tokenizer_settings({key: value})


def test_number_of_templates_in_settings_is_limited() -> None:
    templates = [{"name": str(number), "template": ""} for number in range(17)]
    with pytest.raises(ValueError, match="^the model has 17 chat templates, expected at most 16$"):
        clean_tokenizer_settings({"chat_template": templates})


def test_special_tokens_of_both_files_are_merged(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eos_token": "<a>", "extra_special_tokens": ["<b>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokens = {"eos_token": "<c>", "extra_special_tokens": ["<b>", "<d>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    found = read_tokenizer_settings(tmp_path)
    assert found == {"eos_token": "<c>", "extra_special_tokens": ["<b>", "<d>"]}
    settings["added_tokens_decoder"] = {"0": {"content": "<a>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert read_tokenizer_settings(tmp_path) == settings, (
        "the special tokens map is only read for older tokenizers"
    )


def test_named_templates_become_mapping(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tools", "template": "b"}, {"x": "y"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    found = read_tokenizer_settings(tmp_path)
    assert found == {"chat_template": {"default": "a", "tools": "b"}}


def test_list_templates_omits_empty_templates() -> None:
    assert list_templates({}) == ()
    assert list_templates({"chat_template": "a"}) == ("a",)
    assert list_templates({"chat_template": {"default": "a", "x": "", "y": "b"}}) == ("a", "b")
