r"""Patterns from the tokenizer.json of published tokenizers, and patterns of hostile ones."""

import random
import time
from itertools import product

import pytest
from tokenizers import PreTokenizedString, Regex, pre_tokenizers

from model_files.tokenizer_patterns import FASTER_PATTERNS, check_pattern

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ASCII_SIGNS = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
O200K_END = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def make_o200k(upper: str, lower: str, after: str, end: str = O200K_END) -> str:
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{upper}*{lower}+{after}|{before}{upper}+{lower}*{after}{end}"


PUBLISHED = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-3": CONTRACTIONS + WORDS + r"|\p{N}{1,3}" + END,
    "qwen-2": CONTRACTIONS + WORDS + r"|\p{N}" + END,
    "qwen-3.5": (
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "minicpm-5": CONTRACTIONS + WORDS + r"|\p{N}+" + END,
    "deepseek-3 digits": r"\p{N}{1,3}",
    "deepseek-3 han": "[一-龥぀-ゟ\u30a0-ヿ]+",
    "deepseek-3": (
        ASCII_SIGNS + "[A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
    "deepseek-coder": r"\s?\p{L}+",
    "deepseek-2, replaced": r"(?<!\s)\s+$",
    "gpt-oss": make_o200k(UPPER, LOWER, CONTRACTIONS + "?"),
    "mistral-nemo": make_o200k(UPPER, LOWER, "", O200K_END.replace("{1,3}", "")),
    "kimi": r"[\p{Han}]+|"
    + make_o200k(
        UPPER[:-1] + r"&&[^\p{Han}]]", LOWER[:-1] + r"&&[^\p{Han}]]", CONTRACTIONS + "?", END
    ),
    "llada": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": (
        CONTRACTIONS + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+"
        "|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
    "exaone": (
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "laguna": r"(?:\r?\n)+(?!\r?\n)",
    "bloom": " ?[^(\\s|[.,!?…。\uff0c、।\u06d4،])]+",
    "falcon": "[0-9][0-9][0-9]",
    "chameleon": r"([\t\n]|    |  )",
    "clip": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "sarvam": " ",
    "t5": " {2,}",
    "any": ".",
    "lines": r"[^\n]+|[\n]+",
    "seamless": r"^▁+$",
    "pegasus": r"\n",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_patterns_of_published_models_are_accepted(name: str) -> None:
    check_pattern(PUBLISHED[name])


@pytest.mark.parametrize("name", PUBLISHED)
def test_accepted_patterns_take_linear_time(name: str) -> None:
    split = pre_tokenizers.Split(Regex(PUBLISHED[name]), "isolated")
    letters = ("a", "A", "é", "字", " ", "\n", "\r", "1", "!", "'", "▁", "\u0301")
    for first, second in product(letters, letters):
        text = PreTokenizedString((first + second) * 10_000 + "x")
        started = time.process_time()
        split.pre_tokenize(text)
        # A pattern whose time is quadratic in the length of a run takes more than a second.
        assert time.process_time() - started < 0.5, (first, second)


@pytest.mark.parametrize(("slow", "faster"), FASTER_PATTERNS.items())
def test_faster_pattern_finds_same_matches(slow: str, faster: str) -> None:
    rng = random.Random(0)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in (slow, faster)]
    for _ in range(5_000):
        text = "".join(rng.choices("  \n\r\ta\u3000x", k=rng.randint(1, 12)))
        first, second = (split.pre_tokenize_str(text) for split in splits)
        assert first == second, text


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a|a)*bb", "(a|a)*", "(a*)*", "(a+)+b", "a*a*b", "a+b", "x*y+", r".*\n", "(?>a+)b"),
        *(" +▁", r"\s+$", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))"),
        *(r"\s*[\r\n]+", r"\s*[\r\n]+|a|\s+", r"\s+(?!x)", r"[^\n]*\n"),
        *(r"(.)\1+", r"(?<x>a)\g<x>", r"\X+b", r"\R*x", "(?~abc)", "[[:alpha:]]*b"),
        *("a?" * 30 + "b", "a{1,9999}", "(a{1,16}){1,16}", "(a|b){1,16}", "a{2}+", "a{1,3}*"),
        *("a+?b", "a++b", "[a", "a)", "(?i:ss)*x", "a" * 40, "|".join("a" * 40), "a" * 5000),
    ],
)
def test_other_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match="^the tokenizer has (a|the) regular expression"):
        check_pattern(pattern)
