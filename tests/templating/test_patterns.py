import random
import re
import time

from templating.patterns import match_any, match_first_characters


def test_match_any_finds_longest_words_first() -> None:
    rng = random.Random(0)
    for _ in range(300):
        sizes = rng.choices(range(1, 6), k=rng.randint(1, 9))
        words = {"".join(rng.choices("ab<|.", k=size)) for size in sizes}
        plain = re.compile("|".join(map(re.escape, sorted(words, key=len, reverse=True))))
        text = "".join(rng.choices("ab<|.x", k=200))
        found = [match.span() for match in match_any(words).finditer(text)]
        assert found == [match.span() for match in plain.finditer(text)], words


def test_match_any_without_words_matches_nothing() -> None:
    assert match_any([]).search("anything") is None
    assert match_any([""]).search("anything") is None


def test_match_any_is_fast_for_thousands_of_words() -> None:
    pattern = match_any(f"<|reserved_special_token_{number}|>" for number in range(5_000))
    started = time.process_time()
    assert pattern.search("<|" * 500_000) is None
    assert time.process_time() - started < 2.0


def test_words_that_are_prefixes_of_each_other_are_found() -> None:
    words = ["a" * length for length in range(1, 3_000)]
    match = match_any(words).search("b" + "a" * 5_000)
    assert match is not None
    assert match.span() == (1, 3_000)


def test_first_characters_of_words_are_found() -> None:
    pattern = re.compile(match_first_characters(["<s>", "</s>", "[a]", "x", "xy"]))
    text = "<s> <b></s>[a][b] x <s"
    found = [match.start() for match in pattern.finditer(text)]
    assert found == [0, 7, 11, 18]
    assert [text[index] for index in found] == ["<", "<", "[", "x"]
