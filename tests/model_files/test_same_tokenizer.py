"""Tokenizers are compared by what they do, not by the bytes of their files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from model_files import same_tokenizer
from model_files.loading import load_tokenizer
from model_files.same_tokenizer import find_tokenizer_difference
from model_files.tokenizer_checks import MAX_TOKENIZER_BYTES
from tests.tiny_model import build_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def _edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        content = json.loads((directory / name).read_text())
        change(content)
        (directory / name).write_text(json.dumps(content, indent=1))

    return apply


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_edit("tokenizer.json", lambda _: None), None),
        (
            _edit(
                "tokenizer.json",
                lambda one: one.update(
                    truncation={
                        "direction": "Right",
                        "max_length": 8,
                        "strategy": "LongestFirst",
                        "stride": 0,
                    }
                ),
            ),
            None,
        ),
        (_edit("tokenizer_config.json", lambda one: one.update(model_max_length=5)), None),
        (
            _edit("tokenizer.json", lambda one: one.update(normalizer={"type": "Lowercase"})),
            "tokenizer",
        ),
        (
            _edit("tokenizer_config.json", lambda one: one.update(eos_token="<|im_start|>")),
            "tokenizer",
        ),
        (
            _edit("tokenizer_config.json", lambda one: one.update(split_special_tokens=True)),
            "tokenizer",
        ),
        (
            _edit("tokenizer_config.json", lambda one: one.update(chat_control_tokens=["fox"])),
            "tokenizer",
        ),
        (
            _edit("tokenizer_config.json", lambda one: one["extra_special_tokens"].append("fox")),
            "tokenizer",
        ),
        (
            _edit(
                "tokenizer_config.json",
                lambda one: one.update(added_tokens_decoder={"9": {"content": "fox"}}),
            ),
            "tokenizer",
        ),
        (lambda one: (one / "chat_template.jinja").write_text("{{ 1 }}"), "chat template"),
    ],
)
def test_difference_is_named(
    tiny: Path, tmp_path: Path, change: Callable[[Path], None], expected: str | None
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    assert find_tokenizer_difference(tiny, other) is None
    change(other)
    assert find_tokenizer_difference(tiny, other) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"},
        {
            "tokenizer_class": "LlamaTokenizer",
            "add_bos_token": True,
            "add_eos_token": False,
            "legacy": False,
            "clean_up_tokenization_spaces": True,
            "bos_token": "<|im_start|>",
            "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "special": True},
        },
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "add_bos_token": False,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "e",  # in the vocabulary, and in no list of added tokens
            "errors": "replace",
        },
        {"tokenizer_class": "GPT2Tokenizer"},
    ],
    ids=lambda settings: settings["tokenizer_class"],
)
def test_tokenizer_that_a_training_saves_is_that_of_its_base(
    tiny: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Settings as in the files of published models, and what transformers 5 writes of them."""
    base, saved = tmp_path / "base", tmp_path / "saved"
    shutil.copytree(tiny, base)
    _edit("tokenizer.json", lambda one: one.update(post_processor=None))(base)
    added = json.loads((base / "tokenizer.json").read_text())["added_tokens"]
    listed = {str(one.pop("id")): one for one in added}
    (base / "tokenizer_config.json").write_text(
        json.dumps({**settings, "added_tokens_decoder": listed})
    )
    tokenizer = load_tokenizer(base)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # as many trainings do
    tokenizer.save_pretrained(saved)
    assert find_tokenizer_difference(saved, base) is None
    assert find_tokenizer_difference(base, saved) is None


def test_file_that_makes_the_library_panic_is_an_error_of_the_user(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        pass

    def panic(_: bytes) -> Tokenizer:
        raise PanicException("index out of bounds")

    monkeypatch.setattr(same_tokenizer, "Tokenizer", SimpleNamespace(from_buffer=panic))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^tokenizer\.json cannot be read: .*out of bounds"):
        find_tokenizer_difference(tiny, tmp_path)


def test_file_too_large_to_be_parsed_is_not_read(tiny: Path, tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_TOKENIZER_BYTES + 1)
    with pytest.raises(ValueError, match=r"^tokenizer\.json has 67,108,865 bytes; expected at mo"):
        find_tokenizer_difference(tiny, tmp_path)


def test_faulty_file_is_an_error_of_the_user(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^tokenizer\.json cannot be read: "):
        find_tokenizer_difference(tiny, tmp_path)
