import json
from pathlib import Path

from model_files.cleaning import clean_directory


def test_unknown_keys_are_removed_from_files(tmp_path: Path) -> None:
    contents = {
        "config.json": {"model_type": "llama", "_name_or_path": "/home/me"},
        "generation_config.json": {"temperature": 1, "custom_generate": "a/b"},
        "tokenizer_config.json": {"eos_token": "x", "vocab": "/etc/passwd", "unknown": True},
        "special_tokens_map.json": {"eos_token": "x", "vocab_file": "y"},
        "added_tokens.json": {"x": 1, "y": "/etc/passwd"},
        "other.json": {"vocab": 1},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "processor_config.json").write_text("{}")
    clean_directory(tmp_path)
    assert {file.name: json.loads(file.read_text()) for file in tmp_path.iterdir()} == {
        "config.json": {"model_type": "llama"},
        "generation_config.json": {"temperature": 1},
        "tokenizer_config.json": {"eos_token": "x"},
        "special_tokens_map.json": {"eos_token": "x"},
        "added_tokens.json": {"x": 1},
        "other.json": {"vocab": 1},
    }


def test_file_with_only_known_keys_is_unchanged(tmp_path: Path) -> None:
    content = b'{"eos_token":   "x"}'
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    clean_directory(tmp_path)
    assert (tmp_path / "tokenizer_config.json").read_bytes() == content
