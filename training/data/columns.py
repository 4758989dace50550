"""The columns of rows that a spec names, compared with those of the first row."""

from collections.abc import Mapping, Sequence

from training.data.faults import DataError, show_names


def check_columns(keys: Sequence[str], mapped: Mapping[str, str], known: Sequence[str]) -> None:
    """Check the columns that a spec names, by our keys; `keys` are those of the first row.

    Raises `DataError` for a key that is not `known`, and for a column that the row lacks.
    """
    if unknown := sorted(set(mapped) - set(known)):
        raise DataError(
            f"columns has the keys {show_names(unknown)}; the keys are {show_names(known)}"
        )
    if missing := sorted(theirs for theirs in mapped.values() if theirs not in keys):
        raise DataError(
            f"columns names {show_names(missing)}, which the first row lacks; "
            f"the columns there are {show_names(keys)}"
        )
