from typing import Any

import pytest

from model_files.config_settings import clean_config, clean_generation_config


def test_configuration_keeps_model_settings() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "gelu_pytorch_tanh",
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "short_factor": [1.0, 2.0]},
        "hybrid_override_pattern": "M-M*-",
        "eos_token_id": [1, 2],
        "sliding_window": None,
        "tie_word_embeddings": True,
        "text_config": {"model_type": "qwen3", "vocab_size": 5},
        "per_layer_config": {"0": {"num_attention_heads": 2}},
        "rms_norm_eps": {"__float__": "Infinity"},
        "transformers_version": "4.38.0.dev0",
    }
    assert clean_config(config) == config


@pytest.mark.parametrize(
    "key",
    [
        *("_name_or_path", "name_or_path", "auto_map", "_attn_implementation", "__class__"),
        *("attn_implementation", "experts_implementation", "attribute_map", "id2label"),
        *(
            "transformers_weights",
            "configuration_files",
            "custom_pipelines",
            "task_specific_params",
        ),
    ],
)
@pytest.mark.parametrize("value", ["x", {"a": "b"}, ["x"], 1])
def test_keys_that_select_files_or_code_are_removed(key: str, value: Any) -> None:
    assert clean_config({key: value, "a": {key: value, "b": [{key: value}]}}) == {"a": {"b": [{}]}}


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "a/b", "..", "~", "..\\x", "https://x", "x" * 5000]
)
def test_strings_that_may_be_paths_are_removed(text: str) -> None:
    config = {"a": text, "b": {"c": text}, "d": [text, "e", None]}
    assert clean_config(config) == {"b": {}, "d": ["e", None]}


def test_deeply_nested_configuration_is_rejected() -> None:
    config: dict[str, Any] = {}
    for _ in range(40):
        config = {"a": [config]}
    with pytest.raises(ValueError, match="^config.json is nested more than 16 levels deep$"):
        clean_config(config)


def test_generation_config_keeps_only_numeric_settings() -> None:
    settings = {
        "temperature": 0.7,
        "do_sample": True,
        "eos_token_id": [1, 2],
        "max_length": None,
        "transformers_version": "5.0.0",
    }
    others = {
        "custom_generate": "a/b",
        "cache_implementation": "offloaded",
        "compile_config": {},
        "top_k": "5",
        "assistant_model": "x",
    }
    assert clean_generation_config({**settings, **others}) == settings


def test_labels_of_classifiers_are_kept() -> None:
    named = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "n/a", "1": "b"}}
    cleaned = clean_config({**named, "label2id": {"x": "/etc/passwd"}})
    assert cleaned == {**named, "label2id": {"n/a": 0, "b": 1}}
    hostile = {**named, "id2label": {"../x": "b"}}
    assert "id2label" not in clean_config(hostile)
