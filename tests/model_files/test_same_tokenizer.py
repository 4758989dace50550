"""Tokenizers are compared by what they do, not by the bytes of their files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_files.same_tokenizer import find_tokenizer_difference
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


def test_faulty_file_is_an_error_of_the_user(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"^tokenizer\.json cannot be read: "):
        find_tokenizer_difference(tiny, tmp_path)
