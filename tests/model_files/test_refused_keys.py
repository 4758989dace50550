import json
from pathlib import Path
from typing import Any

import pytest

from model_files.refused_keys import check_keys, check_weight_files


def write(directory: Path, name: str, content: Any) -> None:
    (directory / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config.json", {"vocab": "/x"}, "tokenizer_config.json: 'vocab' is '/x', which"),
        ("tokenizer_config.json", {"merges": "x"}, "tokenizer_config.json: 'merges' is 'x'"),
        ("tokenizer_config.json", {"spm_file": "x"}, "tokenizer_config.json: 'spm_file' is 'x'"),
        (
            "tokenizer_config.json",
            {"init_inputs": ["x"]},
            "tokenizer_config.json: 'init_inputs' is",
        ),
        (
            "tokenizer_config.json",
            {"fast_tokenizer_files": ["x"]},
            "tokenizer_config.json: 'fast_tokenizer_files' is",
        ),
        ("special_tokens_map.json", {"vocab_file": "x"}, "special_tokens_map.json: 'vocab_file'"),
        ("config.json", {"transformers_weights": "x"}, "config.json: 'transformers_weights'"),
        ("config.json", {"a": [{"auto_map": {}}]}, "config.json asks for code of the model's own"),
        ("config.json", {"a": {"gguf_file": "x"}}, "config.json: 'gguf_file' is 'x'"),
        ("processor_config.json", {"auto_map": {}}, "processor_config.json asks for code"),
    ],
)
def test_key_that_names_a_file_is_rejected(
    name: str, content: Any, message: str, tmp_path: Path
) -> None:
    write(tmp_path, name, content)
    with pytest.raises(ValueError, match=f"^{message}"):
        check_keys(tmp_path)


def test_harmless_keys_written_by_transformers_are_accepted(tmp_path: Path) -> None:
    leftovers: dict[str, Any] = {
        "tokenizer_file": "/home/me/tokenizer.json",
        "vocab_file": None,
        "init_inputs": [],
    }
    write(tmp_path, "tokenizer_config.json", leftovers)
    write(tmp_path, "config.json", {"_name_or_path": "/home/me"})
    check_keys(tmp_path)
    check_weight_files(tmp_path)


@pytest.mark.parametrize(
    "name", ["adapter_config.json", "shard-00001-model-00001-of-00002.safetensors"]
)
def test_files_that_replace_weights_are_rejected(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=f"^{name} would have other weights loaded"):
        check_weight_files(tmp_path)
