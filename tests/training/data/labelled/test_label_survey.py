from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.data.faults import DataError
from training.data.labelled.label_survey import survey_labels
from training.data.labelled.texts import LABELLED_LAYOUT, LabelledSample
from training.data.row_table import RowTable, RowWriter

Rows = Sequence[tuple[str, ...]]


def write_table(path: Path, rows: Rows) -> RowTable:
    with RowWriter(path, LABELLED_LAYOUT) as writer:
        for number, labels in enumerate(rows, 1):
            ids, types = np.ones(3, np.int32), np.zeros(3, np.uint8)
            writer.write(LabelledSample(number, number, ids, types, labels))
    return RowTable(path, LABELLED_LAYOUT)


def survey(
    folder: Path,
    train: Rows,
    validation: Rows | None = None,
    names: Sequence[str] = (),
    problem_type: str = "auto",
    weights: Any = "equal",
) -> Mapping[str, Any]:
    held_out = None if validation is None else write_table(folder / "validation", validation)
    table = write_table(folder / "train", train)
    return survey_labels(table, held_out, names, problem_type, weights)


@pytest.mark.parametrize(
    ("rows", "problem_type", "labels"),
    [
        ([("b",), ("a",)], "single_label_classification", ["a", "b"]),
        ([("10",), ("9",), ("-1",)], "single_label_classification", ["-1", "9", "10"]),
        ([("b", "a"), ()], "multi_label_classification", ["a", "b"]),
        ([("1.5",), ("2",)], "regression", []),
        ([("1.5",), ("two",)], "single_label_classification", ["1.5", "two"]),
        ([("--5",), ("1",)], "single_label_classification", ["--5", "1"]),
    ],
)
def test_rows_decide_problem_type_and_classes(
    tmp_path: Path, rows: Rows, problem_type: str, labels: list[str]
) -> None:
    found = survey(tmp_path, rows)
    assert (found["problem_type"], found["labels"]) == (problem_type, labels)


def test_list_in_validation_rows_alone_decides_problem_type(tmp_path: Path) -> None:
    found = survey(tmp_path, [("a",), ("b",)], [("a", "b")])
    assert found["problem_type"] == "multi_label_classification"


def test_named_classes_keep_their_order_and_may_have_no_rows(tmp_path: Path) -> None:
    found = survey(tmp_path, [("no",), ("yes",)], names=("yes", "no", "maybe"))
    assert found["labels"] == ["yes", "no", "maybe"]
    assert found["label_counts"] == {"yes": 1, "no": 1, "maybe": 0}


def test_class_weights_are_balanced_or_named(tmp_path: Path) -> None:
    rows = [("a",)] * 3 + [("b",)]
    assert survey(tmp_path, rows)["class_weights"] == []
    assert survey(tmp_path, rows, weights="balanced")["class_weights"] == [4 / 6, 4 / 2]
    assert survey(tmp_path, rows, weights={"b": 5.0})["class_weights"] == [1.0, 5.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": [("a",), ("a",)]}, '^all rows have the label "a", expected rows of at least'),
        (
            {"train": [("a",), ("b",)], "validation": [("a",), ("c",), ("c",)]},
            '^validation rows: the label "c" is not among those of the training rows: "a", "b" '
            r"\(lines 2, 3\)$",
        ),
        (
            {"train": [("a",), ("b",)], "names": ("a", "c")},
            '^training rows: the label "b" is not among those of task_settings.labels: "a", "c" '
            r"\(line 2\)$",
        ),
        (
            {"train": [("1",), ("x",)], "problem_type": "regression"},
            r'^training rows: labels are "x" \(line 2\), expected numbers: ',
        ),
        (
            {"train": [("a", "b"), ("a",)], "problem_type": "single_label_classification"},
            r"^training rows: some have no label or several \(line 1\), expected one: ",
        ),
        (
            {
                "train": [("a",), ("b",)],
                "validation": [("a",), ()],
                "problem_type": "single_label_classification",
            },
            r"^validation rows: some have no label or several \(line 2\), expected one: ",
        ),
        ({"train": [("a",), ()]}, '^all rows have the label "a", expected rows of at least two'),
        (
            {"train": [("a", "b"), ()], "weights": "balanced"},
            "^task_settings.class_weights is 'balanced', which needs one class for each row, but "
            "the labels of the rows are a multi_label_classification problem: ",
        ),
        (
            {"train": [("1.5",), ("2",)], "names": ("a", "b")},
            '^task_settings.labels is "a", "b", but the labels of the rows are numbers to predict',
        ),
        (
            {"train": [("a",), ("b",)], "weights": {"c": 1.0}},
            '^task_settings.class_weights names "c", which no row has; the labels are "a", "b"$',
        ),
        (
            {"train": [(f"r{number}",) for number in range(1001)]},
            "^the 1,001 rows have more than 1,000 different labels; is the label another column",
        ),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        survey(tmp_path, **settings)


def test_refusal_of_validation_labels_names_its_role(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        survey(tmp_path, [("a",), ("b",)], [("c",)])
    assert caught.value.role == "validation"
