"""Base models in a store, which are untrusted, and base models that a user names."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from tests.file_watch import watch_file
from tests.model_files.hostile import HOSTILE, WORD_PIECE_CLASSES, change_object
from tests.tiny_model import CONTEXT_LENGTH, build_tiny_model
from training.base_model import (
    UnknownModelError,
    find_context_length,
    find_revision,
    load_config,
    load_generation_config,
    load_tokenizer,
    open_tokenizer,
)
from training.model import find_hidden_size

UNKNOWN = "is neither the folder of a Hugging Face model nor a model id that can be loaded: "


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.mark.parametrize("name", [f"vocab-{name}" for name in WORD_PIECE_CLASSES])
def test_stored_model_cannot_read_foreign_vocabulary_file(
    name: str, model: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("SECRET")
    HOSTILE[name](model, secret)
    durable.seal_directory(model)
    with watch_file(secret) as watch:
        with pytest.raises(
            UnknownModelError, match=rf"^base_model 'model' {UNKNOWN}'model' has no tokenizer\.json"
        ):
            load_tokenizer(str(model))
        assert not watch.was_opened()


def test_stored_model_with_slow_pattern_is_rejected(model: Path) -> None:
    pattern = {"type": "Replace", "pattern": {"Regex": "(a|a)*bb"}, "content": ""}
    change_object(model / "tokenizer.json", normalizer=pattern)
    durable.seal_directory(model)
    with pytest.raises(
        UnknownModelError,
        match=f"^base_model 'model' {UNKNOWN}the tokenizer has the regular expression",
    ):
        load_tokenizer(str(model))


def test_tokenizer_panic_raises_unknown_model_error(model: Path) -> None:
    """A panic is no `Exception`, so that previously it ended the queue's loop."""
    charsmap = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    change_object(model / "tokenizer.json", normalizer=charsmap)
    for seal in (lambda _: None, durable.seal_directory):
        seal(model)
        with pytest.raises(
            UnknownModelError, match=f"^base_model 'model' {UNKNOWN}the tokenizer failed: "
        ):
            load_tokenizer(str(model))


def test_stored_model_loads_as_in_transformers(model: Path) -> None:
    change_object(model / "config.json", attn_implementation="someone/kernel")
    named = {
        "tokens": open_tokenizer(str(model))("Hello fox")["input_ids"],
        "context": find_context_length(str(model)),
        "hidden": find_hidden_size(str(model)),
        "generation": load_generation_config(str(model)),
    }
    durable.seal_directory(model)
    assert {
        "tokens": open_tokenizer(str(model))("Hello fox")["input_ids"],
        "context": find_context_length(str(model)),
        "hidden": find_hidden_size(str(model)),
        "generation": load_generation_config(str(model)),
    } == named
    assert named["context"] == CONTEXT_LENGTH
    assert load_config(str(model)).name_or_path == str(model)


def test_folder_of_user_may_have_slow_tokenizer(model: Path) -> None:
    made = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").unlink()
    (model / "vocab.json").write_text(json.dumps(made["model"]["vocab"]))
    merges = [" ".join(merge) for merge in made["model"]["merges"]]
    (model / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    change_object(model / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    assert load_tokenizer(str(model)).eos_token == "<|im_end|>"


def test_missing_base_model_is_named(tmp_path: Path) -> None:
    for load in (load_tokenizer, load_config, find_context_length):
        with pytest.raises(UnknownModelError, match=f"^base_model 'gone' {UNKNOWN}"):
            load(str(tmp_path / "gone"))
    assert load_generation_config(str(tmp_path / "gone")) is None


def test_revision_of_hub_model_is_its_commit(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--model"
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert find_revision("someone/model") == commit
    with pytest.raises(UnknownModelError, match=f"^base_model 'someone/other' {UNKNOWN}"):
        find_revision("someone/other")


def test_revision_of_folder_is_hash_of_files(model: Path) -> None:
    plain = find_revision(str(model))
    durable.seal_directory(model)
    sealed = find_revision(str(model))
    assert plain is not None
    assert sealed is not None
    assert plain.startswith("sha256:")
    assert sealed.startswith("sha256:")
    assert plain != sealed


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
    ],
)
def test_positions_before_the_first_do_not_count_as_context(
    tmp_path: Path, settings: dict[str, Any], length: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert find_context_length(str(tmp_path)) == length
