"""Rows with several answers for templates that rewrite earlier turns, and the related settings."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chat_templates import QWEN_3
from training.base_model import find_end_ids, load_tokenizer
from training.data.faults import DataError
from training.data.prepare import VALIDATION_TABLE, prepare_data
from training.data.row_table import RowTable, read_numbers
from training.data.text.preview import preview_rows
from training.data.text.token_layout import TOKEN_LAYOUT
from training.monitoring.data_report import report_data
from training.run.folder import RunFolder
from training.spec import TrainingSpec


def make_chat(number: int, num_answers: int) -> dict[str, Any]:
    turns = [
        {"role": role, "content": f"{role} {number}.{turn}"}
        for turn in range(num_answers)
        for role in ("user", "assistant")
    ]
    return {"messages": turns}


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "chat_template.jinja").write_text(QWEN_3)
    return model


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    chats = [make_chat(number, 1 + number % 2) for number in range(8)]
    path.write_text("".join(f"{json.dumps(chat)}\n" for chat in chats))
    return path


def make_spec(model: Path, rows: Path, **settings: Any) -> TrainingSpec:
    return TrainingSpec(base_model=str(model), train_file=str(rows), **settings)


def test_row_with_two_answers_is_split(model: Path, rows: Path, tmp_path: Path) -> None:
    spec = make_spec(model, rows)
    prepared = prepare_data(spec, tmp_path / "cache")
    assert prepared.summary["num_rows"] == 4 + 2 * 4
    assert prepared.summary["num_split_rows"] == 4
    shown = preview_rows(spec, 2).rows
    assert [(row.line, row.is_part) for row in shown] == [(1, False), (2, True), (2, True)]
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    report_data(run, prepared.summary)
    messages = [event["message"] for event in run.events.read()]
    assert any(message.startswith("4 rows became several") for message in messages)


def test_answers_of_one_row_are_not_both_learned_and_evaluated(
    model: Path, rows: Path, tmp_path: Path
) -> None:
    prepared = prepare_data(make_spec(model, rows, validation_fraction=0.5), tmp_path / "cache")
    train = read_numbers(prepared.train)
    held_out = read_numbers(prepared.folder / VALIDATION_TABLE)
    assert len(train) + len(held_out) == 12
    assert not set(train) & set(held_out)
    assert len(np.unique(held_out)) == 4


def test_chat_settings_create_separate_tables(model: Path, rows: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare_data(make_spec(model, rows), cache)
    for settings in (
        {"learned_turns": "last"},
        {"reasoning": "drop"},
        {"template_arguments": {"enable_thinking": False}},
    ):
        other = prepare_data(make_spec(model, rows, **settings), cache)
        assert other.folder != first.folder
        assert other.summary["cache"] == "miss"
    last = prepare_data(make_spec(model, rows, learned_turns="last"), cache)
    assert (last.summary["num_rows"], last.summary["num_split_rows"]) == (8, 0)


def test_template_arguments_apply_to_prompt(model: Path, rows: Path) -> None:
    spec = make_spec(model, rows, template_arguments={"enable_thinking": False})
    preview = preview_rows(spec, 1)
    (row,) = preview.rows
    prompt = preview.tokenizer.decode(row.input_ids[: row.learned.argmax()].tolist())
    assert prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_model_without_end_token_emits_warning(model: Path, rows: Path, tmp_path: Path) -> None:
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["eos_token"] = None
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("config.json", "generation_config.json"):
        content = json.loads((model / name).read_text())
        content["eos_token_id"] = None
        (model / name).write_text(json.dumps(content))
    assert find_end_ids(str(model), load_tokenizer(str(model))) == ()
    prepared = prepare_data(make_spec(model, rows), tmp_path / "cache")
    assert prepared.summary["has_end_token"] is False
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    report_data(run, prepared.summary)
    warnings = [event["message"] for event in run.events.read() if event["level"] == "warn"]
    assert any("does not stop by itself" in message for message in warnings)


def write_array(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(records))  # all rows on one line
    return path


def test_rows_on_one_line_are_separate_rows(model: Path, tmp_path: Path) -> None:
    chats = [make_chat(number, 2) for number in range(20)]
    rows = write_array(tmp_path / "rows.json", chats)
    prepared = prepare_data(make_spec(model, rows, validation_fraction=0.2), tmp_path / "cache")
    assert prepared.summary["num_split_rows"] == 20
    assert len(RowTable(prepared.train, TOKEN_LAYOUT)) == 2 * 16
    assert len(RowTable(prepared.folder / VALIDATION_TABLE, TOKEN_LAYOUT)) == 2 * 4


def make_long_chat() -> dict[str, Any]:
    chat = make_chat(0, 2)
    chat["messages"][0]["content"] = "long " * 50
    return chat


def test_dropped_row_with_several_answers_counts_once(model: Path, tmp_path: Path) -> None:
    rows = write_array(tmp_path / "rows.json", [make_long_chat(), make_chat(1, 1)])
    spec = make_spec(model, rows, overlong="drop", max_length=64)
    summary = prepare_data(spec, tmp_path / "cache").summary
    assert (summary["num_rows"], summary["num_dropped_rows"]) == (1, 1)
    assert summary["dropped_lines"] == [1]
    refusing = make_spec(model, rows, overlong="refuse", max_length=64)
    with pytest.raises(DataError, match="^rows.json: 1 of 2 rows cannot be used: 1 row"):
        prepare_data(refusing, tmp_path / "cache")


def test_rows_without_remaining_answers_are_rejected(model: Path, tmp_path: Path) -> None:
    rows = write_array(tmp_path / "rows.json", [make_long_chat()])
    with pytest.raises(
        DataError, match="^rows.json: no row is left: all have more than max_length 64"
    ):
        prepare_data(make_spec(model, rows, overlong="drop", max_length=64), tmp_path / "cache")


def test_file_matched_by_two_entries_is_rejected(model: Path, rows: Path, tmp_path: Path) -> None:
    mixed = [{"file": str(rows)}, {"file": str(rows.parent / "*.jsonl"), "weight": 2}]
    spec = TrainingSpec.model_validate({"base_model": str(model), "train_files": mixed})
    with pytest.raises(DataError, match=r"^rows.jsonl is named by 'rows.jsonl' and by '\*.jsonl'"):
        prepare_data(spec, tmp_path / "cache")
