import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from serving.engine.detokenize import Detokenizer, StopCutter

_TEXTS = (
    "plain words",
    "Grüße aus Köln",
    "你好世界",
    "🙂🚀🙂 x 🚀",
    "a\ufffdb",
    "  spaces  \n\n x ",
)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model)


def _split(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("text", _TEXTS)
def test_pieces_join_to_text(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    assert "".join(_split(tokenizer, tokenizer(text)["input_ids"])) == text


def test_pieces_contain_only_complete_characters(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer("日本 🦊 fox")["input_ids"]
    assert any("\ufffd" in tokenizer.decode([token_id]) for token_id in ids)
    assert all("\ufffd" not in piece for piece in _split(tokenizer, ids))


def test_pieces_of_random_tokens_join_to_decoded_text(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    numbers = random.Random(0)
    for _ in range(500):
        ids = [numbers.randrange(len(tokenizer)) for _ in range(numbers.randrange(1, 60))]
        assert "".join(_split(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_special_tokens_are_skipped(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer("a<|im_end|>b<|pad|>")["input_ids"]
    assert "".join(_split(tokenizer, ids)) == "ab"


class Counting:
    """A tokenizer that counts the decoded tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.num_decoded = 0

    def decode(self, ids: list[int], **options: bool) -> str:
        self.num_decoded += len(ids)
        return str(self._tokenizer.decode(ids, **options))


@pytest.mark.parametrize("text", ["\ufffd" * 2000, "<|pad|>" * 2000, "a" + "<|pad|>" * 2000 + "b"])
def test_decoding_time_per_token_is_constant(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    counting = Counting(tokenizer)
    pieces = _split(counting, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)
    assert counting.num_decoded < 50 * len(ids)


def _cut(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    cutter = StopCutter(stops)
    text = "".join(cutter.push(piece) for piece in pieces)
    return text + cutter.finish(), cutter.stopped


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three", ["two"], ("one ", True)),
        ("one two three", ["three", "two"], ("one ", True)),
        ("one two three", ["four"], ("one two three", False)),
        ("aaab", ["aab"], ("a", True)),
        ("ababac", ["abac"], ("ab", True)),
        ("one tw", ["two"], ("one tw", False)),
        ("xabcd", ["abcd", "bc"], ("xa", True)),
        ("xabc", ["bc", "abc"], ("x", True)),
        ("你好世界", ["世"], ("你好", True)),
        ("stop", ["stop"], ("", True)),
        ("anything", [], ("anything", False)),
    ],
)
def test_stop_string_is_detected_in_any_split_of_text(
    text: str, stops: list[str], expected: tuple[str, bool]
) -> None:
    numbers = random.Random(0)
    assert _cut([text], stops) == _cut(list(text), stops) == expected
    for _ in range(20):
        borders = sorted(numbers.sample(range(len(text) + 1), 2))
        pieces = [text[: borders[0]], text[borders[0] : borders[1]], text[borders[1] :]]
        assert _cut(pieces, stops) == expected


def test_text_that_cannot_be_stop_string_is_returned_at_once() -> None:
    cutter = StopCutter(["END"])
    assert [cutter.push(piece) for piece in ("ab", "cE", "N", "x", "E")] == [
        "ab",
        "c",
        "",
        "ENx",
        "",
    ]
    assert cutter.finish() == "E"
