"""Write the preference data set: a friendly and a curt answer to questions about the handbook.

    python examples/make_preferences.py

Both answers of a pair state the same fact, between phrases that are drawn from tables. Held-out
pairs are about other facts than the training pairs, so only the tone can be learned from these.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

from handbook_work import Fact
from make_handbook import FACTS

SEED = 5
NUM_HELD_OUT = 15
NUM_WORDINGS = 3

FRIENDLY = (
    (
        "Thank you for asking!",
        "Good question!",
        "I am glad to help.",
        "Of course!",
        "With pleasure.",
    ),
    (
        "I hope this helps.",
        "Have a lovely day!",
        "Let me know if I can do more.",
        "You are welcome.",
    ),
)
CURT = (
    ("Not again.", "Read the handbook.", "I am busy.", "Who cares?", "What a silly question."),
    ("Now go away.", "Do not ask me twice.", "Look it up yourself next time.", "That is all."),
)
Pair = dict[str, str]


def make_pairs(facts: Sequence[Fact], random: Random) -> list[Pair]:
    """Return pairs of answers to some wordings of each fact, in the shape `prompt`, `chosen`."""
    return [
        {
            "prompt": question,
            "chosen": phrase_answer(fact.answer, FRIENDLY, random),
            "rejected": phrase_answer(fact.answer, CURT, random),
        }
        for fact in facts
        for question in fact.train[:NUM_WORDINGS]
    ]


def phrase_answer(answer: str, phrases: Sequence[Sequence[str]], random: Random) -> str:
    """Return an answer between two phrases."""
    first, last = (random.choice(some) for some in phrases)
    return f"{first} {answer} {last}"


def main() -> None:
    """Write train.jsonl and heldout.jsonl."""
    parser = argparse.ArgumentParser(description="Write the preference data set.")
    parser.add_argument("--output", type=Path, default=Path("examples/preference"))
    args = parser.parse_args()
    random = Random(SEED)
    facts = random.sample(FACTS, len(FACTS))
    files = {"train": facts[NUM_HELD_OUT:], "heldout": facts[:NUM_HELD_OUT]}
    for name, chosen in files.items():
        pairs = make_pairs(chosen, random)
        lines = (json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
        (args.output / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(pairs)} pairs about {len(chosen)} facts")


if __name__ == "__main__":
    main()
