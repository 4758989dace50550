"""Inspection before loading of models that this release has not checked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.engine.remote import inspect_in_fork
from serving.errors import EngineDeadError


def _hang(model: Path) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a|a)*bb"}, "content": ""}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))


def _remove_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def _add_adapter(model: Path) -> None:
    (model / "adapter_config.json").write_text('{"base_model_name_or_path": "someone/else"}')


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (_hang, r"the tokenizer has the regular expression '\(a\|a\)\*bb'"),
        (_remove_tokenizer, r"'model' has no tokenizer\.json; convert its tokenizer"),
        (_add_adapter, r"adapter_config\.json would have other weights loaded"),
    ],
)
def test_unsafe_stored_model_is_not_loaded(
    corrupt: Callable[[Path], None], message: str, tmp_path: Path, tiny_model: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    corrupt(model)
    with pytest.raises(EngineDeadError, match=f"^model 'model' cannot be loaded: {message}"):
        inspect_in_fork(model)


def test_tokenizer_memory_of_stored_model_is_counted(tiny_model: Path) -> None:
    found = inspect_in_fork(tiny_model)
    assert found.tokenizer_bytes >= (tiny_model / "tokenizer.json").stat().st_size
    assert found.weight_bytes > 0
