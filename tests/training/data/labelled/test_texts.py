import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny_encoder import build_tiny_encoder
from training.base_model import load_tokenizer
from training.data.faults import DataError, RowFault
from training.data.labelled.texts import (
    LABELLED_LAYOUT,
    LabelledText,
    LabelledTextReader,
    choose_columns,
)
from training.data.prepare import prepare_data
from training.data.readers import RowFile
from training.data.row_table import RowTable
from training.spec import TrainingSpec
from training.task import find_task

PARAPHRASES = (
    "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    '1\t1\t2\tthe film was good\tIt is "a good film", really\n'
    '0\t3\t4\tthe book was bad\t"plain", it was\n'
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_encoder(tmp_path_factory.mktemp("models") / "encoder")


def make_spec(model: Path, file: Path, **settings: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "base_model": str(model),
            "train_file": str(file),
            "task": "sequence_classification",
            **settings,
        }
    )


def write_rows(file: Path, rows: Sequence[Any]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_paraphrase_corpus_is_read_as_it_is_published(tmp_path: Path, encoder: Path) -> None:
    file = tmp_path / "msr_paraphrase_train.txt"
    file.write_text(PARAPHRASES, encoding="utf-8")
    prepared = prepare_data(make_spec(encoder, file), tmp_path / "cache")
    rows = RowTable(prepared.train, LABELLED_LAYOUT)
    assert rows.find_lines([0, 1]) == [2, 3]
    assert [row.labels for row in rows.read([0, 1])] == [("1",), ("0",)]
    assert prepared.summary["labels"] == ["0", "1"]
    assert prepared.summary["label_counts"] == {"0": 1, "1": 1}
    assert prepared.summary["format"] == "#1 String and #2 String with Quality"
    tokenizer = load_tokenizer(str(encoder))
    expected = tokenizer("the film was good", 'It is "a good film", really')
    (row,) = rows.read([0])
    assert row.input_ids.tolist() == expected["input_ids"]
    assert row.type_ids.tolist() == expected["token_type_ids"]


def test_truncated_pair_keeps_both_texts_and_is_counted(tmp_path: Path, encoder: Path) -> None:
    pair = {"sentence1": "good " * 30, "sentence2": "bad " * 3, "label": "a"}
    file = write_rows(tmp_path / "rows.jsonl", [pair, {**pair, "label": "b"}])
    spec = make_spec(encoder, file, max_length=16)
    prepared = prepare_data(spec, tmp_path / "cache")
    assert prepared.summary["num_truncated_rows"] == 2
    (row,) = RowTable(prepared.train, LABELLED_LAYOUT).read([0])
    assert len(row.input_ids) == 16
    bad = load_tokenizer(str(encoder)).convert_tokens_to_ids("bad")
    assert row.input_ids.tolist().count(bad) == 3
    refused = make_spec(encoder, file, max_length=16, overlong="refuse")
    with pytest.raises(DataError, match=r"^rows\.jsonl: 2 of 2 rows cannot be used: 2 rows: 3\d "):
        prepare_data(refused, tmp_path / "cache")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "good"}, "^'label' is null, expected the name or number of a class$"),
        ({"text": "good", "label": {"a": 1}}, r"^'label' is \{\"a\": 1\}, expected the name or"),
        ({"text": "", "label": "a"}, "^'text' is empty, expected text$"),
        ({"text": 5, "label": "a"}, "^'text' is 5, expected text$"),
        ({"text": "good", "label": ["a", "a"]}, "^'label' has a label twice: "),
        ({"text": "good", "label": "x" * 201}, "^'label' has 201 characters, expected the name of"),
        ([1], r"^expected an object, found \[1\]$"),
    ],
)
def test_faulty_row_is_described(record: Any, message: str, tmp_path: Path, encoder: Path) -> None:
    reader = open_reader(tmp_path, encoder)
    with pytest.raises(RowFault, match=message):
        reader.parse(2, record, 2)


def open_reader(folder: Path, encoder: Path) -> LabelledTextReader:
    file = write_rows(folder / "rows.jsonl", [])
    tokenizer = load_tokenizer(str(encoder))
    reader = LabelledTextReader(RowFile(file), {}, tokenizer, 64, truncates=True)
    reader.parse(1, {"text": "good", "label": "a"}, 1)
    return reader


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        ("spam", ("spam",)),
        (" spam ", ("spam",)),
        (1, ("1",)),
        (True, ("true",)),
        (2.5, ("2.5",)),
        (["b", "a"], ("b", "a")),
        ('["b", "a"]', ("b", "a")),
        ([], ()),
    ],
)
def test_label_becomes_text(
    value: Any, labels: tuple[str, ...], tmp_path: Path, encoder: Path
) -> None:
    row = open_reader(tmp_path, encoder).parse(2, {"text": "good", "label": value}, 2)
    assert row == LabelledText(2, 2, ("good",), labels)


@pytest.mark.parametrize(
    ("record", "mapped", "texts", "label"),
    [
        ({"text": "", "label": ""}, {}, ("text",), "label"),
        ({"premise": "", "hypothesis": "", "label": ""}, {}, ("premise", "hypothesis"), "label"),
        ({"review": "", "class": ""}, {}, ("review",), "class"),
        ({"a": "", "b": "", "c": ""}, {"text": "a", "label": "c"}, ("a",), "c"),
        (
            {"a": "", "b": "", "label": ""},
            {"text": "a", "text_pair": "b"},
            ("a", "b"),
            "label",
        ),
    ],
)
def test_columns_are_recognised_or_named(
    record: Any, mapped: dict[str, str], texts: tuple[str, ...], label: str
) -> None:
    assert choose_columns(record, mapped) == (texts, label)


@pytest.mark.parametrize(
    ("record", "mapped", "message"),
    [
        ({"text": ""}, {}, '^the first row has no column for the label: found "text"; expected'),
        ({"body": "", "label": ""}, {}, "^the first row has no column for the text: found "),
        ({"text": ""}, {"label": "y"}, '^columns names "y", which the first row lacks; the col'),
        ({"text": ""}, {"prompt": "text"}, '^columns has the keys "prompt"; the keys are "text",'),
        ("text", {}, '^the first row is "text", expected an object or a table row$'),
    ],
)
def test_missing_column_is_named(record: Any, mapped: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        choose_columns(record, mapped)


def test_padding_is_the_token_that_the_model_recognises(tmp_path: Path, encoder: Path) -> None:
    """A decoder classifies at the last token of a row that is not its configuration's padding."""
    model = Path(shutil.copytree(encoder, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "pad_token_id": 7}))
    rows = [{"text": "good", "label": "a"}, {"text": "bad", "label": "b"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    spec = make_spec(model, file)
    summary = prepare_data(spec, tmp_path / "cache").summary
    objective = find_task(spec.task).open_objective(spec, summary)
    layout = LABELLED_LAYOUT
    read = RowTable(prepare_data(spec, tmp_path / "cache").train, layout).read([0, 1])
    ids, types = read[1].input_ids, read[1].type_ids
    longer = read[1]._replace(
        input_ids=np.append(ids, np.int32(9)), type_ids=np.append(types, np.uint8(0))
    )
    batch = objective.collate([read[0], longer], "padded", is_training=False)
    assert batch.inputs["input_ids"][0, -1] == 7
