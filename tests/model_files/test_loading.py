"""Loading of model directories, and the files that hostile ones cause to be opened."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GemmaTokenizer,
    GenerationConfig,
    GPT2Tokenizer,
    LlamaTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)

from model_files.loading import load_config, load_generation_config, load_tokenizer
from tests.file_watch import watch_file
from tests.model_files.hostile import HOSTILE, WORD_PIECE_CLASSES, change_object
from tests.tiny_model import build_tiny_model
from tests.tokenizer_kinds import KINDS, make_tokenizer

ROOT = Path(__file__).parent.parent.parent
TEXT = "Hello <|im_end|> wörld</s> <think> 12 你好  <s>"


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def load_hostile(secret: Path, folders: list[Path]) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.model_files.hostile", *folders],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_hostile_model_opens_no_foreign_file(tmp_path: Path, tiny_model: Path) -> None:
    secret = tmp_path / "secret.safetensors"
    secret.write_text("\n".join(f"SECRET-{number}" for number in range(50)))
    folders = []
    for name, change in HOSTILE.items():
        folders.append(Path(shutil.copytree(tiny_model, tmp_path / name)))
        change(folders[-1], secret)
    with watch_file(secret) as watch:
        found = load_hostile(secret, folders)
        assert not watch.was_opened(), [
            result["name"] for result in found if "SECRET-" in str(result)
        ]
    assert {result["name"] for result in found} == HOSTILE.keys()
    for result in found:
        assert "SECRET-" not in str(result), result
        assert result["outside"] == [], result
    # A model that is complete without the reference to the secret is loaded without it.
    without_tokenizer = {f"vocab-{name}" for name in WORD_PIECE_CLASSES}
    assert find_refused(found, "decoded") == without_tokenizer
    unloadable = {"adapter", "distributed", "quantization"}
    assert find_refused(found, "inspected") == unloadable
    assert find_refused(found, "loaded") == without_tokenizer | unloadable
    assert HOSTILE.keys() - find_refused(found, "checked") == {
        *("places", "config_places", "kernel", "attributes", "quantization"),
        *("added_tokens", "processor", "preprocessor"),
    }


def find_refused(found: list[dict[str, Any]], step: str) -> set[str]:
    return {result["name"] for result in found if result[step].startswith("refused: ")}


def assert_same(directory: Path) -> None:
    """Check that a harmless directory loads as it does with transformers."""
    theirs, ours = AutoTokenizer.from_pretrained(directory), load_tokenizer(directory)
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]
    assert ours.decode(ours(TEXT)["input_ids"]) == theirs.decode(theirs(TEXT)["input_ids"])
    for name in (
        *("special_tokens_map", "extra_special_tokens", "chat_template", "model_max_length"),
        *("padding_side", "name_or_path", "model_input_names", "clean_up_tokenization_spaces"),
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert str(ours.added_tokens_decoder) == str(theirs.added_tokens_decoder)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_equals_that_of_transformers(kind: str, tmp_path: Path) -> None:
    make_tokenizer(kind).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert_same(tmp_path)


@pytest.mark.parametrize(
    ("tokenizer_class", "model_type"),
    [
        (GPT2Tokenizer, "gpt2"),
        (LlamaTokenizer, "llama"),
        (Qwen2Tokenizer, "qwen3"),
        (GemmaTokenizer, "gemma3_text"),
    ],
)
def test_tokenizer_of_model_class_gives_same_tokens(
    tokenizer_class: Callable[..., Any], model_type: str, tmp_path: Path
) -> None:
    letters = [*"HeloĠwrdthinkim_end<>|/", "\u2581", "<unk>", "<s>", "</s>", "<|endoftext|>"]
    vocab = {letter: number for number, letter in enumerate(dict.fromkeys(letters))}
    made = tokenizer_class(vocab=vocab, merges=[])
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for text in (TEXT, "Hello  world </s>", "the end"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.special_tokens_map == theirs.special_tokens_map


def test_old_tokenizer_has_end_token_of_its_class(tmp_path: Path) -> None:
    """GPT-2's tokenizer settings on the Hugging Face Hub name no special tokens."""
    backend = Tokenizer(models.BPE({"a": 0, "<|endoftext|>": 1}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1024}')
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id, len(tokenizer)) == (1, 1, 2)
    (tmp_path / "config.json").write_text('{"model_type": ["gpt2"]}')
    assert load_tokenizer(tmp_path).eos_token is None


def test_special_tokens_of_old_models_are_found(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "</s>": 1, "<x>": 2}, "a"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    end = {"content": "</s>", "lstrip": True, "rstrip": False, "normalized": False}
    tokens = {"eos_token": end, "additional_special_tokens": ["<x>"], "image_token": "<x>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.eos_token_id, tokenizer.extra_special_tokens) == (1, ["<x>"])
    assert tokenizer.image_token == "<x>"
    assert tokenizer.added_tokens_decoder[1].lstrip


def test_directory_without_tokenizer_json_is_rejected(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"^'model' has no tokenizer\.json; convert its tokenizer"):
        load_tokenizer(model)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"model": {"type": "none"}}', b"\xff"])
def test_unreadable_tokenizer_raises_value_error(model: Path, content: bytes) -> None:
    (model / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="^the tokenizer failed: "):
        load_tokenizer(model)


def test_too_large_tokenizer_file_is_rejected(model: Path) -> None:
    with (model / "tokenizer.json").open("ab") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(
        ValueError, match="^tokenizer.json has 67,108,865 bytes; expected at most 67,108,864$"
    ):
        load_tokenizer(model)


def test_template_file_overrides_tokenizer_config(model: Path) -> None:
    change_object(model / "tokenizer_config.json", chat_template="settings")
    (model / "chat_template.jinja").unlink()
    assert load_tokenizer(model).chat_template == "settings"
    (model / "chat_template.jinja").write_text("file")
    assert load_tokenizer(model).chat_template == "file"
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_tokenizer(model).chat_template == {"default": "file", "tool_use": "tools"}


def test_configurations_equal_those_of_transformers(model: Path) -> None:
    assert load_config(model) == AutoConfig.from_pretrained(model)
    assert load_generation_config(model) == GenerationConfig.from_pretrained(model)
    (model / "generation_config.json").unlink()
    change_object(model / "config.json", top_k=7)
    theirs = AutoModelForCausalLM.from_pretrained(model).generation_config
    assert load_generation_config(model).to_dict() == theirs.to_dict()
    assert theirs.top_k == 7


def test_infinite_numbers_are_preserved(model: Path) -> None:
    change_object(model / "config.json", rms_norm_eps={"__float__": "Infinity"})
    assert load_config(model).rms_norm_eps == float("inf")
