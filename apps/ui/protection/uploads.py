"""The private temporary folder of uploads to the page, until they are sent to the HTTP API."""

import os
import stat
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from storage.regular_file import open_regular
from storage.scratch import ScratchFolder

UPLOAD_LIFETIME_S = 3600
UPLOAD_FOLDER_VARIABLE = "GRADIO_TEMP_DIR"  # where Gradio reads its upload folder from


class ForeignFileError(Exception):
    """A path that does not name an upload."""


class UploadFolder:
    """A new folder (mode 0700) for the uploads of one page process.

    The folder of a killed process is removed by the next page process of the same user.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        self._scratch = ScratchFolder(parent, f"tuneserve-page-{os.getuid()}-")
        self._scratch.path.chmod(0o700)
        self.path = self._scratch.path.resolve()
        self._finalizer = weakref.finalize(self, self._scratch.remove)

    def set_as_gradio_folder(self) -> None:
        """Have Gradio store uploads here; it reads the variable again for each request."""
        os.environ[UPLOAD_FOLDER_VARIABLE] = str(self.path)

    def open(self, path: str) -> BinaryIO:
        """Open an upload for reading.

        Raises `ForeignFileError` for anything but a regular file inside this folder: a file
        elsewhere, a symbolic link, a FIFO or a device.
        """
        if not self._contains(path):
            raise ForeignFileError(f"{path!r} is not an upload to this page")
        try:
            return open_regular(path, follow_links=False)
        except OSError as exc:
            raise ForeignFileError(f"{path!r} cannot be opened: {exc.strerror}") from exc

    def has_upload(self, path: str) -> bool:
        """Return whether `path` names a regular file inside this folder."""
        with suppress(OSError, ValueError):
            return self._contains(path) and stat.S_ISREG(os.lstat(path).st_mode)
        return False

    def delete(self, path: str) -> None:
        """Delete an upload; a missing file is not an error."""
        if self._contains(path):
            Path(path).unlink(missing_ok=True)

    def delete_older_than(self, age_s: float) -> None:
        """Delete older uploads that were not imported, and partial files of aborted uploads."""
        for path in self.path.rglob("*"):
            with suppress(OSError):
                if path.is_file() and time.time() - path.lstat().st_mtime > age_s:
                    path.unlink()

    def count_bytes(self) -> int:
        """Count the bytes of all uploads that are younger than `UPLOAD_LIFETIME_S`."""
        self.delete_older_than(UPLOAD_LIFETIME_S)
        num_bytes = 0
        for path in self.path.rglob("*"):
            with suppress(OSError):
                num_bytes += path.lstat().st_size if path.is_file() else 0
        return num_bytes

    def remove(self) -> None:
        """Remove the folder with all uploads."""
        self._finalizer()

    def _contains(self, path: str) -> bool:
        """Return whether a path is absolute, normalized, without links and inside this folder."""
        if "\0" in path or not os.path.isabs(path) or os.path.normpath(path) != path:
            return False
        return os.path.realpath(path) == path and Path(path).is_relative_to(self.path)
