"""A survey of the labels of all rows: what they are, the classes, and how many rows each has."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from training.data.faults import DataError, describe_ignored, show_names
from training.data.row_table import RowTable

_MAX_CLASSES = 1000
_MIN_CLASSES = 2


class _Labels:
    """The labels of one table."""

    def __init__(self, table: RowTable) -> None:
        self.counts: Counter[str] = Counter()
        self.num_rows = len(table)
        self.has_lists = False
        for batch in table.iterate_batches():
            for labels in batch.column("labels").to_pylist():
                self.counts.update(labels)
                self.has_lists |= len(labels) != 1

    def find_rows(self, table: RowTable, chosen: Any) -> str:
        """Name the rows of a table with a label for which `chosen` is true."""
        found, start = [], 0
        for batch in table.iterate_batches():
            for place, labels in enumerate(batch.column("labels").to_pylist(), start):
                if any(chosen(label) for label in labels):
                    found.append(place)
            start += batch.num_rows
        return table.describe_rows(found)


def survey_labels(
    train: RowTable,
    validation: RowTable | None,
    names: Sequence[str],
    problem_type: str,
    weights: Literal["equal", "balanced"] | Mapping[str, float],
) -> dict[str, Any]:
    """Decide the problem type, the classes and their weights, and count the rows of each class.

    `names`, `problem_type` and `weights` are the settings; 'auto' and no names let the rows decide.
    Raises `DataError` for labels that do not fit, which names them and their rows.
    """
    found = _Labels(train)
    kind = _choose_problem(found) if problem_type == "auto" else problem_type
    if kind == "regression":
        for table, role in ((train, "training"), (validation, "validation")):
            if table is not None:
                _check_numbers(table, role)
        return {
            "description": "with a number each",
            "problem_type": kind,
            "labels": [],
            "class_weights": [],
            "label_counts": {},
        }
    if kind == "single_label_classification" and found.has_lists:
        raise DataError(
            "some rows have no label or several, and task_settings.problem_type is "
            "'single_label_classification': set it to 'multi_label_classification'"
        )
    classes = list(names) or _order(found.counts)
    _check_classes(classes, kind, found)
    _check_known(train, "training", found.counts, classes, is_named=bool(names))
    if validation is not None:
        held_out = _Labels(validation)
        _check_known(validation, "validation", held_out.counts, classes, is_named=bool(names))
    return {
        "description": f"labels {describe_ignored(found.counts)}",
        "problem_type": kind,
        "labels": classes,
        "class_weights": _weigh(classes, found, weights),
        "label_counts": {name: found.counts[name] for name in classes},
    }


def _choose_problem(found: _Labels) -> str:
    if found.has_lists:
        return "multi_label_classification"
    numbers = [_parse_number(label) for label in found.counts]
    is_decimal = any("." in label or "e" in label.lower() for label in found.counts)
    if is_decimal and all(number is not None for number in numbers):
        return "regression"
    return "single_label_classification"


def _parse_number(label: str) -> float | None:
    try:
        number = float(label)
    except ValueError:
        return None
    return number if abs(number) < float("inf") else None  # false for NaN too


def _order(counts: Mapping[str, int]) -> list[str]:
    """Order classes: numbers in ascending order, else by the alphabet."""
    if all(label.lstrip("-").isdecimal() for label in counts):
        return sorted(counts, key=int)
    return sorted(counts)


def _check_numbers(table: RowTable, role: Any) -> None:
    labels = _Labels(table)
    faulty = [label for label in labels.counts if _parse_number(label) is None]
    if faulty or labels.has_lists:
        where = labels.find_rows(table, lambda label: _parse_number(label) is None)
        what = f"{show_names(faulty)} ({where})" if faulty else "lists of labels"
        raise _refuse(
            f"labels are {what}, expected numbers: task_settings.problem_type is 'regression'",
            role,
        )


def _check_classes(classes: Sequence[str], kind: str, found: _Labels) -> None:
    if len(classes) > _MAX_CLASSES:
        raise DataError(
            f"the {found.num_rows:,} rows have {len(classes):,} different labels, expected at most "
            f"{_MAX_CLASSES:,} classes; is the label another column, or a number "
            "(task_settings.problem_type 'regression')?"
        )
    least = _MIN_CLASSES if kind == "single_label_classification" else 1
    if len(classes) < least:
        raise DataError(
            f"all rows have the label {show_names(classes)}, expected rows of at least two classes"
            if classes
            else "no row has a label"
        )


def _check_known(
    table: RowTable,
    role: Literal["training", "validation"],
    counts: Mapping[str, int],
    classes: Sequence[str],
    *,
    is_named: bool,
) -> None:
    known = set(classes)
    if unknown := [label for label in counts if label not in known]:
        where = _Labels(table).find_rows(table, lambda label: label not in known)
        source = "task_settings.labels" if is_named else "the training rows"
        raise _refuse(
            f"the label {show_names(unknown)} is not among those of {source}: "
            f"{show_names(classes)} ({where})",
            role,
        )


def _refuse(message: str, role: Literal["training", "validation"]) -> DataError:
    error = DataError(f"{role} rows: {message}")
    error.role = role
    return error


def _weigh(
    classes: Sequence[str],
    found: _Labels,
    weights: Literal["equal", "balanced"] | Mapping[str, float],
) -> list[float]:
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
