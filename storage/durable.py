"""Atomic, durable writes of files and directories."""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.format_version import CURRENT_FORMAT, FORMAT_KEY
from storage.regular_file import open_regular, read_regular

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
_HASH_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 1 << 14


class DamagedDirectoryError(ValueError):
    """A published directory differs from its manifest."""


class DamagedFileError(RuntimeError):
    """A file that the application wrote cannot be read or has invalid content.

    This is a server error, not a fault of a request: it is reported as status 500 and logged.
    `path` is the damaged file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{str(path)!r} is damaged: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type["DamagedFileError"], tuple[Path, str]]:
        """Keep both arguments when the error is pickled."""
        return type(self), (self.path, self.reason)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` with `value` as JSON; readers see either the old or the new file."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` atomically: write a temporary file, fsync, rename, fsync the folder.

    `storage.temporary_files` removes temporary files that killed processes left. It lists the names
    of all files of a storage root that are written with this function.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def read_json(path: Path) -> Any:
    """Read a JSON file; raises `FileNotFoundError` or `json.JSONDecodeError`."""
    return json.loads(read_regular(path))


def append_json_line(path: Path, value: Any, *, is_ascii: bool = False) -> None:
    """Append one line of JSON in a single write, so that lines of two processes never mix.

    `is_ascii` escapes non-ASCII characters, for untrusted content that is shown in terminals. If a
    crash left a partial last line, that line is terminated first, so that it does not corrupt the
    new one. Raises `OSError` if the disk has no room for the whole line.
    """
    line = json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":")).encode() + b"\n"
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        is_torn = size > 0 and file.read(1) != b"\n"
        content = b"\n" + line if is_torn else line
        if file.write(content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def read_json_lines(path: Path) -> list[Any]:
    """Read every complete line; an unterminated last line is ignored.

    Lines that are not valid JSON, such as those cut by a crash, are skipped and logged.
    """
    return LineFollower(path).read_new()


class LineFollower:
    """Reads each line of a growing JSON Lines file once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read_new(self) -> list[Any]:
        """Read the lines that were completed since the last call, as `read_json_lines` does."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._position)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._position += len(complete)
        parsed = (_parse_line(self._path, line) for line in complete.splitlines() if line.strip())
        return [value for value in parsed if value is not None]


def read_last_json_line(path: Path) -> Any:
    """Return the last complete line without reading the whole file; None if there is none."""
    tail = read_tail(path, _TAIL_BYTES)
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    return _parse_line(path, lines[-1]) if lines else None


def read_tail(path: Path, max_bytes: int) -> bytes:
    """Return the last `max_bytes` of a file; empty if the file does not exist."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - max_bytes))
            return file.read(max_bytes)
    except FileNotFoundError:
        return b""


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def publish_directory(
    building: Path, final: Path, known: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Publish a finished `building` directory as `final`: fsync, write the manifest, rename.

    Both paths must be on the same file system. `known` is as in `seal_directory`. Raises
    `FileExistsError` if `final` exists: published directories are never replaced.
    """
    _check_free(final)
    seal_directory(building, known)
    move_directory(building, final)


def seal_directory(directory: Path, known: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Write the manifest of a finished directory, replacing an existing one; fsync all files.

    `known` maps file names to manifest entries (size and hash) that the writer of the files already
    knows, so that those files need not be read again.
    """
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    files: dict[str, Mapping[str, Any]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            fsync_directory(path)
            continue
        fsync_file(path)
        name = path.relative_to(directory).as_posix()
        files[name] = (known or {}).get(name) or {
            "size_bytes": path.stat().st_size,
            "sha256": hash_file(path),
        }
    manifest = {FORMAT_KEY: str(CURRENT_FORMAT), "files": files}
    write_json(directory / MANIFEST_NAME, manifest)


def move_directory(sealed: Path, final: Path) -> None:
    """Rename a sealed directory to its final name; raise `FileExistsError` if that is taken."""
    _check_free(final)
    try:
        os.rename(sealed, final)
    except OSError as exc:
        if exc.errno in (errno.ENOTEMPTY, errno.EEXIST):  # created since the first check
            _check_free(final)
        raise
    fsync_directory(final.parent)


def _check_free(final: Path) -> None:
    if final.exists():
        raise FileExistsError(
            f"{final.name!r} is published already; published names are not reused"
        )


def is_published(directory: Path) -> bool:
    """Return whether a directory has its manifest; without one it counts as nonexistent."""
    return (directory / MANIFEST_NAME).is_file()


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to a file that never changes, or a copy where links are impossible.

    That is so on another file system, or one without hard links.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        copy_file(source, target)


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file durably."""
    shutil.copyfile(source, target)
    fsync_file(target)


def fsync_directory(directory: Path) -> None:
    """Make renames inside `directory` survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make a file's content survive a power failure."""
    with open_regular(path) as file:
        os.fsync(file.fileno())


def _parse_line(path: Path, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        logger.warning("%s has a torn line, which is skipped", path)
        return None
