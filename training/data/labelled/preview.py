"""The first rows with labels of a file: texts, or the names of images, before anything starts."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from training.data.faults import DataError, IgnoredKeys, RowFault
from training.data.images.encoded_image import find_image_path
from training.data.images.image_rows import choose_image_columns
from training.data.images.image_zip import ImageZip
from training.data.labelled.labels import get_labels
from training.data.labelled.texts import choose_columns
from training.data.readers import KnownFile, RowSource
from training.data.sources import open_train_sources
from training.data.text.messages import get_text
from training.spec import TrainingSpec

MAX_SHOWN_CHARACTERS = 1_000
"""Most characters of a text in a preview."""


class ShownRow(NamedTuple):
    """One row: its texts, or the name of its image, and its labels."""

    line: int
    texts: tuple[str, ...]
    labels: tuple[str, ...]


class LabelledPreview(NamedTuple):
    """The first rows, their columns, and how many of them have each ignored key."""

    format: str
    rows: list[ShownRow]
    ignored_keys: Mapping[str, int]


def preview_labelled_rows(
    spec: TrainingSpec, num_rows: int, known: Mapping[str, KnownFile] | None = None
) -> LabelledPreview:
    """Read the first `num_rows` rows of a classification task, and no further.

    If a spec has several sources, the rows are those of the first source. Raises `DataError`.
    """
    source = open_train_sources(spec, known)[0].source
    read = _show_image if spec.task == "image_classification" else _show_texts
    try:
        return _preview(source, spec.columns, num_rows, read)
    finally:
        if isinstance(source, ImageZip):
            source.close()


_Shown = tuple[tuple[str, ...], str, tuple[str, ...]]
_Show = Callable[[Mapping[str, Any], Mapping[str, str]], _Shown]


def _preview(
    source: RowSource, mapped: Mapping[str, str], num_rows: int, show: _Show
) -> LabelledPreview:
    rows: list[ShownRow] = []
    ignored = IgnoredKeys()
    columns: tuple[str, ...] = ()
    label = ""
    for line, record in source.read():
        try:
            if isinstance(record, RowFault):
                raise record
            columns, label, texts = show(record, mapped)
            labels = get_labels(record, label)
        except (DataError, RowFault) as exc:
            raise DataError(f"{source.name}: {source.unit} {line}: {exc}") from exc
        rows.append(ShownRow(line, tuple(map(_shorten, texts)), labels))
        ignored.add(sorted(str(key) for key in record if key not in (*columns, label)))
        if len(rows) == num_rows:
            break
    if not rows:
        raise DataError(f"{source.name} holds no rows: expected at least one")
    return LabelledPreview(f"{' and '.join(columns)} with {label}", rows, ignored.counts)


def _show_texts(record: Mapping[str, Any], mapped: Mapping[str, str]) -> _Shown:
    columns = choose_columns(record, mapped)
    texts = tuple(get_text(record, name) for name in columns.texts)
    return columns.texts, columns.label, texts


def _show_image(record: Mapping[str, Any], mapped: Mapping[str, str]) -> _Shown:
    columns = choose_image_columns(record, mapped)
    path = find_image_path(record.get(columns.image))
    return (columns.image,), columns.label, (path or "(an image in the file)",)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
