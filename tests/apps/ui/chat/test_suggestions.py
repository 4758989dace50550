"""Questions in the start of a file of rows."""

import json
from typing import Any

import pytest

from apps.ui.chat.suggestions import MAX_CANDIDATES, pick_questions

ROWS: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "Why? "}]
    },
    "sharegpt": {"conversations": [{"from": "human", "value": "Why?"}]},
    "prompt": {"prompt": "Why?", "completion": "So."},
    "prompt as messages": {"prompt": [{"role": "user", "content": "Why?"}]},
    "alpaca": {"instruction": "Why?", "input": "", "output": "So."},
    "preference": {"input": {"messages": [{"role": "user", "content": "Why?"}]}},
}


@pytest.mark.parametrize("shape", list(ROWS))
@pytest.mark.parametrize("is_list", [True, False])
def test_first_question_of_each_shape_is_found(shape: str, is_list: bool) -> None:
    rows = [ROWS[shape]] if is_list else ROWS[shape]
    assert pick_questions(json.dumps(rows).encode(), {}) == ["Why?"]


def test_columns_of_the_run_are_used() -> None:
    start = b'q,a\n"Why?",So\nWho?,Me\n'
    assert pick_questions(start, {"prompt": "q", "completion": "a"}) == ["Why?", "Who?"]
    assert pick_questions(start, {}) == []
    assert pick_questions(b"prompt\tanswer\nWhy?\tSo\n", {}) == ["Why?"]


def test_cut_row_is_ignored() -> None:
    start = json.dumps({"prompt": "Why?"}) + '\n{"prompt": "Who i'
    assert pick_questions(start.encode(), {}) == ["Why?"]


def test_different_short_questions_of_the_start_are_picked() -> None:
    texts = ["x" * 121, "a\nb", "", *(f"Question {n}?" for n in range(100)), "Question 1?"]
    start = "\n".join(json.dumps({"prompt": text}) for text in texts)
    picked = pick_questions(start.encode(), {})
    assert picked == ["Question 0?", "Question 10?", "Question 20?", "Question 30?"]
    assert MAX_CANDIDATES == 40


@pytest.mark.parametrize(
    "start", [b"", b"PK\x03\x04\0\0", b"\x1f\x8b\x08\0\0", b"[" * 5000, b"just text", b"[1, 2]"]
)
def test_file_without_rows_has_no_questions(start: bytes) -> None:
    assert pick_questions(start, {}) == []
