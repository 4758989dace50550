"""A folder of images packed as a ZIP archive, as uploads of images must be."""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apps.cli.output import fail


@contextmanager
def pack_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary archive of a folder, without hidden files, named after it.

    Images are stored uncompressed, because they hardly compress. Ends the command for a folder
    without files, and for a link.
    """
    files = sorted(path for path in folder.rglob("*") if _is_visible(path, folder))
    if links := [path for path in files if path.is_symlink()]:
        fail(f"{str(links[0])!r} is a link; copy the file or folder itself to where the link is")
    files = [path for path in files if path.is_file()]
    if not files:
        fail(f"the folder {str(folder)!r} has no files")
    with tempfile.TemporaryDirectory(prefix="tuneserve-upload-") as place:
        packed = Path(place) / f"{folder.resolve().name}.zip"
        with zipfile.ZipFile(packed, "w") as archive:
            for path in files:
                archive.write(path, path.relative_to(folder))
        yield packed


def _is_visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)
