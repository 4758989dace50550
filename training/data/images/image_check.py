"""A check of an archive of images without a model, as soon as it is uploaded."""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from system.byte_progress import OnBytes
from training.data.faults import DataError, show_value
from training.data.images.image_rows import COLUMN_NAMES, ImageReader
from training.data.images.image_zip import ImageZip
from training.data.readers import KnownFile
from training.data.row_stream import RowStream


class ImageCounts(NamedTuple):
    """What an archive contains: its rows, and the number of images of each class."""

    format: str
    num_rows: int
    label_counts: dict[str, int]
    ignored_keys: dict[str, int]


def check_images(path: Path, known: KnownFile | None, on_bytes: OnBytes) -> ImageCounts:
    """Decode every image of an archive, and count them.

    Calls `on_bytes` with the bytes read and the bytes in all, after every image. Raises `DataError`
    for images that cannot be used, and for images of a single class.
    """
    source = ImageZip(path, COLUMN_NAMES, known)
    size_bytes = source.measure()
    stream = RowStream(source, ImageReader(source, {}), max_length=1)
    labels: Counter[str] = Counter()
    for row in stream.encode(on_read=lambda: on_bytes(source.position, size_bytes)):
        labels.update(row.labels)
    if len(labels) < 2:
        raise DataError(
            f"{source.name}: all images have the label {show_value(next(iter(labels), ''))}; "
            "expected at least 2 classes"
        )
    return ImageCounts(
        stream.format,
        labels.total(),
        dict(sorted(labels.items())),
        stream.counts.ignored_keys.counts,
    )
