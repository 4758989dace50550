"""A survey of the labels of all rows: what they are, the classes, and how many rows each has."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from training.data.faults import DataError, RowRole, describe_ignored, show_names
from training.data.row_table import RowTable

_MAX_CLASSES = 1000
_MIN_CLASSES = 2
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")

Weights = Literal["equal", "balanced"] | Mapping[str, float]


class _Labels:
    """The labels of the rows of one table; the memory for it does not grow with the rows."""

    def __init__(self, table: RowTable, role: RowRole) -> None:
        self.table = table
        self.role = role
        self.num_rows = len(table)
        self.counts: Counter[str] = Counter()  # incomplete if there are too many
        self.has_too_many = False
        self.has_lists = False
        self.are_numbers = True
        self.has_decimals = False
        for labels in self._iterate():
            self.has_lists |= len(labels) != 1
            for label in labels:
                self._add(label)

    def _iterate(self) -> Any:
        for batch in self.table.iterate_batches():
            yield from batch.column("labels").to_pylist()

    def _add(self, label: str) -> None:
        self.are_numbers = self.are_numbers and _parse_number(label) is not None
        self.has_decimals |= "." in label or "e" in label.lower()
        if label in self.counts or len(self.counts) <= _MAX_CLASSES:
            self.counts[label] += 1
        else:
            self.has_too_many = True

    def name_rows(self, chosen: Callable[[list[str]], bool]) -> str:
        """Name the rows with labels for which `chosen` is true."""
        found = [place for place, labels in enumerate(self._iterate()) if chosen(labels)]
        return self.table.describe_rows(found)

    def refuse(self, message: str) -> DataError:
        """Return the error that these rows cannot be used."""
        error = DataError(f"{self.role} rows: {message}")
        error.role = self.role
        return error


def survey_labels(
    train: RowTable,
    validation: RowTable | None,
    names: Sequence[str],
    problem_type: str,
    weights: Weights,
) -> dict[str, Any]:
    """Decide the problem type, the classes and their weights, and count the rows of each class.

    `names`, `problem_type` and `weights` are the settings; 'auto' and no names let the rows decide.
    Raises `DataError` for labels that do not fit, which names them and their rows.
    """
    tables = [_Labels(train, "training")]
    if validation is not None:
        tables.append(_Labels(validation, "validation"))
    found = tables[0]
    kind = _choose_problem(tables) if problem_type == "auto" else problem_type
    _check_settings(kind, names, weights)
    if kind == "regression":
        for table in tables:
            _check_numbers(table)
        return {
            "description": "with a number each",
            "problem_type": kind,
            "labels": [],
            "class_weights": [],
            "label_counts": {},
        }
    if kind == "single_label_classification":
        for table in tables:
            _check_single(table)
    classes = list(names) or _order(found.counts)
    _check_classes(classes, found)
    for table in tables:
        _check_known(table, classes, is_named=bool(names))
    return {
        "description": f"labels {describe_ignored(found.counts)}",
        "problem_type": kind,
        "labels": classes,
        "class_weights": _weigh(classes, found, weights),
        "label_counts": {name: found.counts[name] for name in classes},
    }


def _choose_problem(tables: Sequence[_Labels]) -> str:
    if any(table.has_lists for table in tables):
        return "multi_label_classification"
    if all(table.are_numbers for table in tables) and any(table.has_decimals for table in tables):
        return "regression"
    return "single_label_classification"


def _check_settings(kind: str, names: Sequence[str], weights: Weights) -> None:
    """Raise `DataError` for settings that the problem type, which the rows decided, has not."""
    if kind == "regression" and names:
        raise DataError(
            f"task_settings.labels is {show_names(names)}, but the labels of the rows are numbers "
            "to predict: remove it, or set problem_type"
        )
    if kind != "single_label_classification" and weights != "equal":
        raise DataError(
            f"task_settings.class_weights is {weights!r}, which needs one class for each row, but "
            f"the labels of the rows are a {kind} problem: remove it, or set problem_type"
        )


def _parse_number(label: str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _order(counts: Mapping[str, int]) -> list[str]:
    """Order classes: numbers in ascending order, else by the alphabet."""
    if all(_WHOLE_NUMBER.fullmatch(label) for label in counts):
        return sorted(counts, key=int)
    return sorted(counts)


def _check_numbers(labels: _Labels) -> None:
    expected = "expected numbers: task_settings.problem_type is 'regression'"
    if labels.has_lists:
        where = labels.name_rows(lambda own: len(own) != 1)
        raise labels.refuse(f"some have no label or several ({where}), {expected}")
    if not labels.are_numbers:
        where = labels.name_rows(lambda own: _parse_number(own[0]) is None)
        faulty = [label for label in labels.counts if _parse_number(label) is None]
        raise labels.refuse(f"labels are {show_names(faulty)} ({where}), {expected}")


def _check_single(labels: _Labels) -> None:
    if labels.has_lists:
        where = labels.name_rows(lambda own: len(own) != 1)
        raise labels.refuse(
            f"some have no label or several ({where}), expected one: task_settings.problem_type is "
            "'single_label_classification'; set it to 'multi_label_classification'"
        )


def _check_classes(classes: Sequence[str], found: _Labels) -> None:
    if found.has_too_many or len(classes) > _MAX_CLASSES:
        raise DataError(
            f"the {found.num_rows:,} rows have more than {_MAX_CLASSES:,} different labels; is the "
            "label another column, or a number (task_settings.problem_type 'regression')?"
        )
    if len(classes) < _MIN_CLASSES:
        has = f"have the label {show_names(classes)}" if classes else "lack a label"
        raise DataError(f"all rows {has}, expected rows of at least two classes")


def _check_known(labels: _Labels, classes: Sequence[str], *, is_named: bool) -> None:
    known = set(classes)
    if unknown := [label for label in labels.counts if label not in known]:
        where = labels.name_rows(lambda own: not known.issuperset(own))
        source = "task_settings.labels" if is_named else "the training rows"
        raise labels.refuse(
            f"the label {show_names(unknown)} is not among those of {source}: "
            f"{show_names(classes)} ({where})"
        )


def _weigh(classes: Sequence[str], found: _Labels, weights: Weights) -> list[float]:
    """Return the weight of each class; 'balanced' as in scikit-learn: rows / (classes · count)."""
    if weights == "equal":
        return []
    if weights == "balanced":
        return [found.num_rows / (len(classes) * max(1, found.counts[name])) for name in classes]
    assert isinstance(weights, Mapping)
    if unknown := sorted(set(weights) - set(classes)):
        raise DataError(
            f"task_settings.class_weights names {show_names(unknown)}, which no row has; the "
            f"labels are {show_names(classes)}"
        )
    return [weights.get(name, 1.0) for name in classes]
