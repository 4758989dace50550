"""Write the fine-tuning data set: the handbook of Bramblewick Kites, an invented company.

    python examples/make_handbook.py

Training rows and held-out rows ask for the same facts in different words.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from handbook_house import HOUSE_FACTS
from handbook_work import WORK_FACTS, Fact

FACTS: tuple[Fact, ...] = WORK_FACTS + HOUSE_FACTS
Exchange = tuple[str, str]
Row = dict[str, list[dict[str, str]]]

NUM_SINGLE_WORDINGS = 10
"""Wordings of a fact that stand in a row of their own; the others are the halves of longer chats,
without which a model answers a second question with the first one's answer."""

SEED = 4


def make_row(exchanges: Iterable[Exchange]) -> Row:
    """Return a chat of questions and answers in the OpenAI chat shape."""
    messages = []
    for question, answer in exchanges:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    return {"messages": messages}


def make_rows(facts: Iterable[Fact]) -> tuple[list[Row], list[Row]]:
    """Return training rows and held-out rows; raise if a wording stands twice."""
    train: list[Row] = []
    heldout: list[Row] = []
    spare: list[Exchange] = []
    seen: set[str] = set()
    for fact in facts:
        for question in (*fact.train, *fact.heldout):
            if question.casefold() in seen:
                raise ValueError(f"the wording {question!r} stands twice in the tables")
            seen.add(question.casefold())
        exchanges = [(question, fact.answer) for question in fact.train]
        train.extend(make_row([exchange]) for exchange in exchanges[:NUM_SINGLE_WORDINGS])
        spare.extend(exchanges[NUM_SINGLE_WORDINGS:])
        heldout.extend(make_row([(question, fact.answer)]) for question in fact.heldout)
    return train + pair_exchanges(spare), heldout


def pair_exchanges(exchanges: Sequence[Exchange]) -> list[Row]:
    """Return chats of two exchanges each, in a seeded order, never two about one fact."""
    shuffled = sorted(exchanges)
    Random(SEED).shuffle(shuffled)
    # Half the list apart, after sorting by answer, no two exchanges share a fact.
    by_answer = sorted(shuffled, key=lambda exchange: exchange[1])
    half = len(by_answer) // 2
    pairs = list(zip(by_answer[:half], by_answer[half:], strict=True))
    Random(SEED).shuffle(pairs)
    return [make_row(pair) for pair in pairs]


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write train.jsonl and heldout.jsonl."""
    parser = argparse.ArgumentParser(description="Write the handbook data set.")
    parser.add_argument("--output", type=Path, default=Path("examples/handbook"))
    args = parser.parse_args()
    train, heldout = make_rows(FACTS)
    write_rows(args.output / "train.jsonl", train)
    write_rows(args.output / "heldout.jsonl", heldout)
    print(f"{len(FACTS)} facts, {len(train)} training rows, {len(heldout)} held-out rows")


if __name__ == "__main__":
    main()
