"""Generate the synthetic corpus on which the demonstration model is pre-trained.

Everything is made from the tables beside this file; the same seed gives the same corpus.

    python examples/make_corpus.py --conversations 1000 --output corpus.jsonl
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from corpus_chat import (
    FAREWELLS,
    GREETINGS,
    INTENTS,
    SYSTEM_PROMPTS,
    THANKS,
    Intent,
    vary_wording,
)
from corpus_facts import FactTable, parse_pairs
from corpus_questions import fact_tables
from corpus_reading import make_reading
from corpus_sums import Exchange, make_sum

Conversation = list[dict[str, str]]

WITHOUT_ARTICLE = frozenset(
    (
        "tea",
        "coffee",
        "milk",
        "iron",
        "gold",
        "copper",
        "silver",
        "football",
        "tennis",
        "chess",
        "cheese",
        "bread",
        "soup",
        "spinach",
        "red",
        "blue",
        "green",
    )
)


@dataclass(frozen=True)
class Mix:
    """Shares of the kinds of conversation and of the kinds of reading task."""

    kinds: tuple[int, int, int, int, int]
    reading: tuple[int, int, int, int, int, int]


MIXES = {
    "general": Mix(kinds=(52, 22, 11, 6, 9), reading=(32, 12, 36, 8, 6, 6)),
    # For a later stage: copying out of a text and sums are learned last.
    "reading": Mix(kinds=(58, 12, 18, 4, 8), reading=(56, 18, 16, 4, 3, 3)),
}
SHARD_SIZE = 10_000
"""Conversations per independently seeded shard."""


def with_article(noun: str) -> str:
    """Put "a" or "an" in front of a noun that takes one."""
    if noun[0].isupper() or noun in WITHOUT_ARTICLE:
        return noun
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def capitalise(text: str) -> str:
    """Make the first letter a capital and leave the rest."""
    return text[:1].upper() + text[1:]


@cache
def _tables() -> list[tuple[FactTable, list[tuple[str, str]]]]:
    return [(table, parse_pairs(table.pairs)) for table in fact_tables()]


def make_fact(rng: Random) -> Exchange:
    """Draw a simple fact and one wording of its question."""
    table, pairs = rng.choices(_tables(), [len(pairs) ** 0.5 for _, pairs in _tables()])[0]
    key, value = rng.choice(pairs)
    slots = {
        "k": key,
        "v": value,
        "K": capitalise(key),
        "V": capitalise(value),
        "ak": with_article(key),
        "av": with_article(value),
        "AK": capitalise(with_article(key)),
    }
    return capitalise(rng.choice(table.questions).format(**slots)), table.answer.format(**slots)


def make_talk(rng: Random) -> Exchange:
    """Draw one piece of small talk."""
    return _say(rng, rng.choice(INTENTS))


def _say(rng: Random, intent: Intent) -> Exchange:
    return rng.choice(intent.says), intent.answer


def to_conversation(exchanges: list[Exchange], system: str | None = None) -> Conversation:
    """Turn exchanges, and perhaps a system message, into a list of messages."""
    messages = [{"role": "system", "content": system}] if system else []
    for question, answer in exchanges:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return messages


def make_multi_turn(rng: Random) -> Conversation:
    """Make a longer conversation out of greetings, questions and thanks."""
    exchanges = [_say(rng, GREETINGS)] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 3)):
        make: Callable[[Random], Exchange] = rng.choices(
            (make_fact, make_sum, make_talk), (5, 3, 2)
        )[0]
        exchanges.append(make(rng))
    if rng.random() < 0.4:
        exchanges.append(_say(rng, THANKS))
    if rng.random() < 0.3:
        exchanges.append(_say(rng, FAREWELLS))
    return to_conversation(exchanges, _maybe_system(rng))


def _maybe_system(rng: Random) -> str | None:
    return rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else None


def make_conversation(rng: Random, mix: Mix) -> Conversation:
    """Draw one conversation of any kind."""
    kind = rng.choices(("reading", "fact", "sum", "talk", "long"), mix.kinds)[0]
    if kind == "reading":
        return make_reading(rng, mix.reading)
    if kind == "long":
        return make_multi_turn(rng)
    make = {"fact": make_fact, "sum": make_sum, "talk": make_talk}[kind]
    question, answer = make(rng)
    return to_conversation([(vary_wording(rng, question), answer)], _maybe_system(rng))


def make_shard(seed: int, shard: int, mix: str = "general") -> list[Conversation]:
    """Return shard number ``shard`` of the endless corpus with this seed and mix."""
    rng = Random(f"{seed}-{shard}")
    return [make_conversation(rng, MIXES[mix]) for _ in range(SHARD_SIZE)]


def make_corpus(seed: int, num_conversations: int) -> Iterator[Conversation]:
    """Yield the first ``num_conversations`` conversations of the corpus."""
    for start in range(0, num_conversations, SHARD_SIZE):
        yield from make_shard(seed, start // SHARD_SIZE)[: num_conversations - start]


def main() -> None:
    """Write a corpus as JSON lines."""
    parser = argparse.ArgumentParser(description="Generate the synthetic pre-training corpus.")
    parser.add_argument("--conversations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path("corpus.jsonl"))
    args = parser.parse_args()
    with args.output.open("w", encoding="utf-8") as file:
        for messages in make_corpus(args.seed, args.conversations):
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    print(f"{args.conversations} conversations written to {args.output}")


if __name__ == "__main__":
    main()
