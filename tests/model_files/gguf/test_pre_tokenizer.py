import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from model_files.gguf.pre_tokenizer import name_pre_tokenizer
from tests.tokenizer_kinds import KINDS

ROOT = Path(__file__).parents[3]


def describe(tokenizer: Tokenizer) -> Any:
    return json.loads(tokenizer.to_str())


def test_demonstration_model_splits_like_smollm() -> None:
    settings = json.loads((ROOT / "examples/tuneserve-demo/tokenizer.json").read_text())
    assert name_pre_tokenizer(settings) == "smollm"
    settings["model"]["vocab"]["\u010a\u010a"] = 9999  # two newlines as one token
    assert name_pre_tokenizer(settings) is None


@pytest.mark.parametrize("kind", KINDS)
def test_only_byte_level_tokenizer_has_name(kind: str) -> None:
    expected = "gpt-2" if kind == "byte-level" else None
    assert name_pre_tokenizer(describe(KINDS[kind]())) == expected


@pytest.mark.parametrize(
    "step",
    [
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        ),
    ],
)
def test_tokenizer_that_splits_otherwise_has_no_name(step: Any) -> None:
    tokenizer = KINDS["byte-level"]()
    tokenizer.pre_tokenizer = step
    assert name_pre_tokenizer(describe(tokenizer)) is None
