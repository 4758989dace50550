"""Import of models from archives: received, unpacked beside the store, checked and published."""

import asyncio
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import AsyncIterable
from io import BufferedReader, FileIO
from pathlib import Path, PurePosixPath
from typing import IO

from apps.errors import ApiError, invalid_input, refuse_full_disk
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.hub.transfer_notes import count_coming_bytes
from apps.settings import UsageLimits
from apps.usage_limits import IncomingBytes, check_model_space
from serving.store.import_process import ModelRefusedError
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.layout import UPLOAD_PREFIX, StorageLayout
from storage.scratch import ScratchFolder
from system.machine_faults import is_machine_fault

# Weights compress little: an archive that expands more than this is meant to fill the disk.
_MAX_GROWTH = 4
_MAX_EXTRA_BYTES = 50_000_000
_MAX_ENTRIES = 10_000
_MAX_HEADER_BYTES = 1 << 20  # per entry of a tar
_MAX_READ_BYTES = 16 << 20
_MAX_NAME_CHARACTERS = 1_000
_MAX_DEPTH = 16  # Python removes and lists folders recursively
_MAX_ATTRIBUTES = 32
# For other methods, zipfile decompresses each read completely, whatever size an entry declares.
_ZIP_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_ZIP_ENCRYPTED = 1  # bit in the flags of an entry
_WRITE_BYTES = 4 << 20
# Exceptions of the libraries for archives that are truncated, damaged or unsupported.
_ARCHIVE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OverflowError,
    NotImplementedError,
    UnicodeError,
    ValueError,
)


_INCOMING_BYTES = IncomingBytes()


class IncomingModel:
    """An archive that is received into its own scratch folder, which `close` removes.

    Raises `ApiError` 507 if models and checkpoints already have as many bytes as they may.
    """

    def __init__(self, layout: StorageLayout, sizes: ModelSizes, limits: UsageLimits) -> None:
        self._sizes = sizes
        self._limits = limits
        self._layout = layout
        self._stored_bytes = self._measure_stored()
        check_model_space(self._stored_bytes, limits, 1)
        self._num_counted = 0
        self._store = ModelStore(layout)
        self._scratch = ScratchFolder(layout.models, UPLOAD_PREFIX)
        self._archive = self._scratch.path / "archive"
        self._content = self._scratch.path / "model"

    def close(self) -> None:
        """Remove everything that was not published."""
        self._scratch.remove()
        _INCOMING_BYTES.add(-self._num_counted)
        self._num_counted = 0

    async def receive(self, chunks: AsyncIterable[bytes]) -> None:
        """Write the archive to disk as it is received.

        Raises `ApiError` 507 if all archives in progress together would exceed what may be stored.
        """
        with self._archive.open("wb") as file:
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= _WRITE_BYTES:
                    await asyncio.to_thread(self._write, file, waiting)
                    waiting = bytearray()
            await asyncio.to_thread(self._write, file, waiting)

    def publish(self, model_id: str, base_id: str | None = None) -> StoredModel:
        """Unpack the archive, publish the model and close; `base_id` is the base of an adapter.

        Raises `ApiError` for an invalid archive or model, `FileExistsError` for an id that was
        taken meanwhile, and `OSError` or `ImportCheckError` for faults of the machine.
        """
        try:
            self._unpack()
            with invalid_input("model", only=ModelRefusedError):
                return self._store.import_directory(self._find_root(), model_id, base_id=base_id)
        finally:
            self.close()

    def _measure_stored(self) -> int:
        """Return the bytes of all models and checkpoints, with those of downloads in progress."""
        return self._sizes.measure() + count_coming_bytes(self._layout).total

    def _write(self, file: IO[bytes], content: bytearray) -> None:
        self._num_counted += len(content)
        check_model_space(self._stored_bytes, self._limits, _INCOMING_BYTES.add(len(content)))
        file.write(content)

    def _unpack(self) -> None:
        self._content.mkdir()
        try:
            with refuse_full_disk(), _BoundedReader(FileIO(self._archive)) as file:
                if zipfile.is_zipfile(self._archive):
                    self._unpack_zip(file)
                else:
                    self._unpack_tar(file)
        except OSError as exc:
            if is_machine_fault(exc):
                raise
            # Names that conflict with each other, or are too long.
            raise ApiError(400, f"the archive cannot be unpacked: {exc.strerror}") from exc
        except _ARCHIVE_ERRORS as exc:
            raise ApiError(
                400, f"the body is not a whole tar (not compressed) or zip archive: {exc}"
            ) from exc

    def _unpack_zip(self, file: BufferedReader) -> None:
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
            size_bytes = sum(entry.file_size for entry in listed)
            self._check_growth(len(listed), size_bytes)
            check_model_space(self._measure_stored(), self._limits, size_bytes)
            entries = [entry for entry in listed if _is_wanted(entry.filename)]
            folders = {folder for entry in entries for folder in _list_folders(entry.filename)}
            self._check_growth(len(listed) + len(folders), size_bytes)
            for entry in entries:
                if entry.compress_type not in _ZIP_METHODS:
                    raise ApiError(
                        400,
                        f"{entry.filename!r} in the archive is compressed by method "
                        f"{entry.compress_type}; expected deflate, or no compression",
                    )
                if entry.flag_bits & _ZIP_ENCRYPTED:
                    raise ApiError(
                        400, f"{entry.filename!r} in the archive is encrypted; expected plain files"
                    )
                if stat.S_ISLNK(entry.external_attr >> 16):
                    raise ApiError(400, f"{entry.filename!r} in the archive is a link")
            archive.extractall(self._content, entries)  # noqa: S202 - their names were checked

    def _unpack_tar(self, file: "_BoundedReader") -> None:
        file.num_left = _MAX_HEADER_BYTES
        with tarfile.open(fileobj=file, mode="r:") as archive:
            entries, size_bytes = [], 0
            folders: set[PurePosixPath] = set()
            for number, entry in enumerate(archive, 1):
                if entry.size < 0:  # would seek back to data that was read before
                    raise ApiError(400, f"{entry.name!r} in the archive has the size {entry.size}")
                _check_header(entry)
                file.num_left = _MAX_HEADER_BYTES  # for the headers of the next one
                size_bytes += entry.size
                self._check_growth(number + len(folders), size_bytes)
                if _is_wanted(entry.name):
                    if not (entry.isfile() or entry.isdir()):
                        raise ApiError(
                            400, f"{entry.name!r} in the archive is neither a file nor a folder"
                        )
                    entries.append(entry)
                    folders.update(_list_folders(entry.name))
            file.num_left = None
            check_model_space(self._measure_stored(), self._limits, size_bytes)
            archive.extractall(self._content, entries, filter="data")

    def _check_growth(self, num_entries: int, size_bytes: int) -> None:
        allowed = self._archive.stat().st_size * _MAX_GROWTH + _MAX_EXTRA_BYTES
        if size_bytes > allowed:
            raise ApiError(
                400, f"the archive unpacks to more than {allowed:,} bytes, far more than its size"
            )
        if num_entries > _MAX_ENTRIES:
            message = f"the archive has more than {_MAX_ENTRIES:,} files and folders"
            raise ApiError(400, f"{message}; expected the files of one model")

    def _find_root(self) -> Path:
        """Return the model's folder: the archive's root, or the only folder in it."""
        entries = list(self._content.iterdir())
        is_wrapped = len(entries) == 1 and entries[0].is_dir()
        return entries[0] if is_wrapped else self._content


class _BoundedReader(BufferedReader):
    """A reader that limits the size of each read, since an archive's headers may declare any size.

    `num_left` is the number of bytes that may still be read, or None without a limit: a tar may
    chain any number of headers before an entry, and all of them stay in memory.
    """

    num_left: int | None = None

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:  # up to the end
            size = os.fstat(self.fileno()).st_size - self.tell()
        if self.num_left is not None:
            self.num_left -= size
        if size > _MAX_READ_BYTES or (self.num_left or 0) < 0:
            raise tarfile.ReadError("a header is too long")
        return super().read(size)


def _check_header(entry: tarfile.TarInfo) -> None:
    """Raise `ApiError` for an entry with a large header; the headers of all stay in memory."""
    num_attributes = len(entry.pax_headers)
    longest = max(map(len, (*entry.pax_headers.values(), entry.name, entry.linkname)))
    if entry.issparse() or num_attributes > _MAX_ATTRIBUTES or longest > _MAX_NAME_CHARACTERS:
        raise ApiError(
            400,
            f"{entry.name[:_MAX_NAME_CHARACTERS]!r} in the archive has {num_attributes} extended "
            f"attributes, the longest of {longest:,} characters, or is a sparse file; expected a "
            f"plain file with at most {_MAX_ATTRIBUTES} of {_MAX_NAME_CHARACTERS:,} characters",
        )


def _list_folders(name: str) -> list[PurePosixPath]:
    """List the parent folders of an entry, which an archive need not contain."""
    return list(PurePosixPath(name).parents)[:-1]


def _is_wanted(name: str) -> bool:
    """Return False for hidden files and those that some systems add.

    Raises `ApiError` for a path that is nested too deeply or is outside the model's folder.
    """
    path = PurePosixPath(name)
    if len(path.parts) > _MAX_DEPTH:
        raise ApiError(
            400, f"{name[:100]!r}... in the archive is nested more than {_MAX_DEPTH} folders deep"
        )
    if path.is_absolute() or ".." in path.parts or "\\" in name:
        raise ApiError(400, f"{name!r} in the archive is outside the model's folder")
    return not any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
