"""The labels of a row, and the columns that a spec names."""

from collections.abc import Mapping, Sequence
from typing import Any

from training.data.columns import check_columns
from training.data.faults import DataError, RowFault, show_value
from training.data.text.messages import parse_json

LABEL_COLUMNS = ("label", "labels", "class", "category", "Quality")
_MAX_LABELS_PER_ROW = 1000
_MAX_LABEL_CHARACTERS = 200


def list_columns(record: Any, mapped: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """Return the columns of the first row; raises `DataError` as `check_columns` does."""
    if not isinstance(record, Mapping):
        raise DataError(f"the first row is {show_value(record)}, expected an object or a table row")
    keys = [str(key) for key in record]
    check_columns(keys, mapped, known)
    return keys


def get_labels(record: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the labels in a column as text; raises `RowFault`."""
    value = record.get(name)
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = parse_json(value, repr(name))  # a list in the cell of a table
    if isinstance(value, list):
        if len(value) > _MAX_LABELS_PER_ROW:
            raise RowFault(
                "{!r} has {:,} labels, expected at most {:,}", name, len(value), _MAX_LABELS_PER_ROW
            )
        labels = tuple(dict.fromkeys(_name_label(name, one) for one in value))
        if len(labels) < len(value):
            raise RowFault("{!r} has a label twice: {}", name, show_value(value))
        return labels
    return (_name_label(name, value),)


def _name_label(column: str, value: Any) -> str:
    """Return a label as text: numbers and booleans as JSON writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value.strip() if isinstance(value, str) else str(value)
    is_nan = isinstance(value, float) and value != value
    if value is None or isinstance(value, Mapping | list) or not text or is_nan:
        raise RowFault(
            "{!r} is {}, expected the name or number of a class", column, show_value(value)
        )
    if len(text) > _MAX_LABEL_CHARACTERS:
        raise RowFault(
            "{!r} has {:,} characters, expected the name of a class in at most {}: is it a text?",
            column,
            len(text),
            _MAX_LABEL_CHARACTERS,
        )
    return text
