"""A folder of images as a source of rows: each of its sub-folders is a class."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from storage import durable
from training.data.faults import DataError, RowFault, show_names
from training.data.files.kinds import IMAGE_SUFFIXES, ROW_SUFFIXES, Record, find_suffix
from training.data.images.encoded_image import find_image_file

IMAGE_COLUMN, LABEL_COLUMN = "image", "label"


class _Entry(NamedTuple):
    """One image: its path in the folder, and its size."""

    path: str
    label: str
    size_bytes: int


def holds_row_files(folder: Path) -> bool:
    """Return whether a folder has files of rows, which name images themselves."""
    return any(find_suffix(path) in ROW_SUFFIXES for path in folder.iterdir() if path.is_file())


class ImageFolder:
    """The images of a folder, by class and name; `unit` counts images."""

    unit = "image"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = 0  # bytes of the images that have been read
        self._entries: list[_Entry] | None = None
        self._fingerprint: str | None = None

    @property
    def name(self) -> str:
        """The name of the folder in messages."""
        return self.path.name

    def measure(self) -> int:
        """Return the size of all images; raises `DataError` for a folder of another kind."""
        return sum(entry.size_bytes for entry in self._list())

    def count_images(self) -> int:
        """Return the number of images; raises `DataError` for a folder of another kind."""
        return len(self._list())

    def compute_fingerprint(self) -> str:
        """Hash the names and the contents of all images."""
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for entry in self._list():
                content = durable.hash_file(self.path / entry.path)
                digest.update(f"{entry.path}\0{content}\0".encode(errors="surrogateescape"))
            self._fingerprint = digest.hexdigest()
        return self._fingerprint

    def read(self) -> Iterator[Record]:
        """Yield the path and the label of each image; images are counted from 1."""
        self.position = 0
        for number, entry in enumerate(self._list(), 1):
            yield number, {IMAGE_COLUMN: entry.path, LABEL_COLUMN: entry.label}
            self.position += entry.size_bytes

    def _list(self) -> list[_Entry]:
        if self._entries is None:
            try:
                self._entries = list(self._scan())
            except OSError as exc:
                raise DataError(f"the folder {self.name!r} cannot be read: {exc}") from exc
        return self._entries

    def _scan(self) -> Iterator[_Entry]:
        found = _list_visible(self.path)
        classes = [path for path in found if path.is_dir()]
        others = [path.name for path in found if not path.is_dir()]
        if not classes:
            raise DataError(
                f"the folder {self.name!r} has no sub-folders: expected one for each class, with "
                "its images, or a file of rows with the columns 'image' and 'label'"
            )
        if others:
            raise DataError(
                f"the folder {self.name!r} has other files beside the sub-folders of its classes: "
                f"{show_names(others)}; remove them, or move images into the folder of their class"
            )
        for folder in classes:
            yield from self._scan_class(folder)

    def _scan_class(self, folder: Path) -> Iterator[_Entry]:
        found = _list_visible(folder)
        where = f"{self.name}/{folder.name}"
        if not found:
            raise DataError(f"the folder {where!r} has no images: add some, or remove the folder")
        if wrong := [path.name for path in found if path.suffix.lower() not in IMAGE_SUFFIXES]:
            raise DataError(
                f"the folder {where!r} has other entries than images: {show_names(wrong)}; "
                f"expected files with {', '.join(IMAGE_SUFFIXES)}"
            )
        for path in found:
            inside = f"{folder.name}/{path.name}"
            try:
                file = find_image_file(self.path, inside)
            except RowFault as exc:
                raise DataError(f"the folder {where!r}: {exc}") from exc
            yield _Entry(inside, folder.name, file.stat().st_size)


def _list_visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
