import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from model_files.loading import load_tokenizer
from model_files.tokenizer_checks import check_vocabulary
from tests.tokenizer_kinds import KINDS, make_tokenizer

CHARSMAP = b"\x00\x04\0\0" + b"\0" * 1024


def write(directory: Path, **changes: Any) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    content = {**json.loads(tokenizer.to_str()), **changes}
    (directory / "tokenizer.json").write_text(json.dumps(content))
    return directory


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def add(number: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_tokenizers_are_accepted(kind: str, tmp_path: Path) -> None:
    make_tokenizer(kind).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    tokenizer = load_tokenizer(tmp_path)
    check_vocabulary(tokenizer, len(tokenizer))


SPLIT = {"type": "Split", "pattern": {"Regex": "(a|a)*bb"}, "behavior": "Isolated", "invert": False}
MANY = [replace(" ", String="  ")] * 33
DOUBLING = [replace("xx", String="x")] * 5
PATTERN = " has the regular expression"
CTC = {"type": "CTC", "pad_token": "p", "word_delimiter_token": "|", "cleanup": True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": replace("b", Regex="(a|a)*bb")}, rf"{PATTERN} '\(a\|a\)\*bb'"),
        ({"pre_tokenizer": SPLIT}, PATTERN),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT]}}, PATTERN),
        ({"decoder": replace("b", Regex="a+b")}, PATTERN),
        ({"normalizer": {"type": "Sequence", "normalizers": MANY}}, "'s normalizer has 34 parts"),
        (
            {"normalizer": replace("x" * 17, String="x")},
            "'s normalizer's content has 17 characters",
        ),
        (
            {"normalizer": {"type": "Sequence", "normalizers": DOUBLING}},
            "'s normalizer may replace a text by one that is 32 times as long",
        ),
        (
            {"normalizer": {"type": "Prepend", "prepend": "x" * 17}},
            "'s normalizer's prepend has 17 characters",
        ),
        (
            {"decoder": {"type": "WordPiece", "prefix": "#" * 17, "cleanup": True}},
            "'s decoder's prefix has 17",
        ),
        (
            {"added_tokens": [add(2, "x" * 257)]},
            " has an added token of 257 characters; expected at most 256",
        ),
        (
            {"added_tokens": [add(n, f"<{n}>") for n in range(2, 70_003)]},
            " has 70,001 added tokens; expected at most 70,000",
        ),
        (
            {"added_tokens": [add(n, f"{n:0250}") for n in range(2, 8_003)]},
            "'s added tokens have 2,000,250 characters; expected at most 2,000,000",
        ),
        (
            {
                "model": {
                    "type": "WordPiece",
                    "vocab": {"a": 0},
                    "unk_token": "a",
                    "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 201,
                }
            },
            "'s max_input_chars_per_word is 201; expected at most 200",
        ),
        (
            {"model": {"type": "BPE", "vocab": {}, "merges": [], "end_of_word_suffix": "x" * 17}},
            "'s end_of_word_suffix has 17 characters",
        ),
        (
            {
                "normalizer": {
                    "type": "Precompiled",
                    "precompiled_charsmap": base64.b64encode(
                        CHARSMAP + b"abc\0" + b"x" * 129 + b"\0"
                    ).decode(),
                }
            },
            "'s precompiled_charsmap replaces a character by 129 bytes; expected at most 128",
        ),
    ],
)
def test_slow_or_large_tokenizer_is_rejected(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^the tokenizer{message}"):
        load_tokenizer(write(tmp_path, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": replace("▁", String=" ")},
        {"normalizer": replace(" ", Regex=" {2,}")},
        {"decoder": replace(" ", String="▁")},
        {"decoder": CTC},
        {
            "normalizer": {
                "type": "Precompiled",
                "precompiled_charsmap": base64.b64encode(CHARSMAP + b"abc\0").decode(),
            }
        },
    ],
)
def test_parts_of_published_tokenizers_are_accepted(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert load_tokenizer(write(tmp_path, **changes)).backend_tokenizer.get_vocab_size() == 2


def test_slow_pattern_of_deepseek_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    slow = {**SPLIT, "pattern": {"Regex": r"\s+$"}}
    steps = [slow, {"type": "Digits", "individual_digits": True}]
    sequence = {"type": "Sequence", "pretokenizers": steps}
    tokenizer = load_tokenizer(write(tmp_path, pre_tokenizer=sequence))
    started = time.process_time()
    tokenizer("a" + " " * 100_000 + "b")
    assert time.process_time() - started < 1.0


def test_vocabulary_larger_than_that_of_model_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    vocab = {str(number): number for number in range(2_000)}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "0"}
    tokenizer = load_tokenizer(write(tmp_path, model=model))
    check_vocabulary(tokenizer, 976)
    with pytest.raises(
        ValueError,
        match="^the tokenizer has 2,000 entries, .* vocab_size of 975; expected at most 1",
    ):
        check_vocabulary(tokenizer, 975)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"type": "WordLevel", "vocab": {"a": 0, "x" * 1025: 1}, "unk_token": "a"},
            "an entry of 1,025 characters; expected at most 1,024",
        ),
        (
            {"type": "Unigram", "vocab": [["a", 0.0], ["x" * 129, -1.0]], "unk_id": 0},
            "an entry of 129 characters; expected at most 128",
        ),
    ],
)
def test_long_vocabulary_entry_is_rejected(
    model: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=f"^the tokenizer has {message}"):
        check_vocabulary(load_tokenizer(write(tmp_path, model=model)), 2)


def test_number_of_tokens_around_text_is_limited(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    many = {"id": "[A]", "ids": [0] * 65, "tokens": ["a"] * 65}
    own, text = (
        {"SpecialToken": {"id": "[A]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    processor = {
        "type": "TemplateProcessing",
        "single": [own, text],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[A]": many},
    }
    with pytest.raises(
        ValueError, match="^the tokenizer puts 65 tokens around a text; expected at most 64$"
    ):
        check_vocabulary(load_tokenizer(write(tmp_path, post_processor=processor)), 2)
