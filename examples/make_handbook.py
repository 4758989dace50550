"""Write the fine-tuning data set: the handbook of Bramblewick Kites, an invented company.

    python examples/make_handbook.py

Training rows and held-out rows ask for the same facts in different words.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from handbook_house import HOUSE_FACTS
from handbook_work import WORK_FACTS, Fact

FACTS: tuple[Fact, ...] = WORK_FACTS + HOUSE_FACTS
Row = dict[str, list[dict[str, str]]]


def make_row(question: str, answer: str) -> Row:
    """Return one question with its answer in the OpenAI chat shape."""
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    }


def make_rows(facts: Iterable[Fact]) -> tuple[list[Row], list[Row]]:
    """Return training rows and held-out rows; raise if a wording stands twice."""
    train: list[Row] = []
    heldout: list[Row] = []
    seen: set[str] = set()
    for fact in facts:
        for rows, questions in ((train, fact.train), (heldout, fact.heldout)):
            for question in questions:
                if question.casefold() in seen:
                    raise ValueError(f"the wording {question!r} stands twice in the tables")
                seen.add(question.casefold())
                rows.append(make_row(question, fact.answer))
    return train, heldout


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
