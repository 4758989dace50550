"""Reading and verification of the manifest of a published directory.

`storage.durable` writes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from storage import versioned_json
from storage.durable import MANIFEST_NAME, DamagedDirectoryError, DamagedFileError, hash_file
from storage.versioned_json import NewerFormatError


class ListedFile(NamedTuple):
    """The manifest entry of one file."""

    size_bytes: int
    sha256: str


def read_manifest(directory: Path) -> dict[str, ListedFile]:
    """Read the manifest of a published directory; names are relative to the directory.

    Raises `NewerFormatError` for a manifest of a newer major version, and `DamagedDirectoryError`
    for an unreadable one.
    """
    path = directory / MANIFEST_NAME
    try:
        return parse_listed_files(path, versioned_json.read_object(path))
    except NewerFormatError:
        raise
    except (OSError, DamagedFileError) as exc:
        reason = exc.reason if isinstance(exc, DamagedFileError) else exc.strerror
        raise DamagedDirectoryError(
            f"{directory.name}: {MANIFEST_NAME!r} cannot be read: {reason}"
        ) from exc


def parse_listed_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, ListedFile]:
    """Return the entries of a parsed manifest by file name; `path` is for the error message.

    Keys of a newer minor version are ignored. Raises `DamagedFileError`, or `NewerFormatError` if a
    newer version is the cause.
    """
    try:
        return {name: _parse_entry(entry) for name, entry in manifest["files"].items()}
    except (KeyError, TypeError, AttributeError) as exc:
        reason = f"'files' does not list sizes and hashes ({type(exc).__name__}: {exc})"
        raise versioned_json.explain_invalid(path, manifest, reason) from exc


def verify_directory(directory: Path) -> None:
    """Compare every file of a published directory with its manifest.

    Hidden files are ignored. Raises `DamagedDirectoryError` that names the first file that is
    missing, different or not listed, and `NewerFormatError` for a manifest that a newer release
    wrote and this release cannot read.
    """
    for name, expected in survey_directory(directory).items():
        path = directory / name
        found = ListedFile(path.stat().st_size, hash_file(path))
        check_listed(directory, name, expected, found)


def survey_directory(directory: Path) -> dict[str, ListedFile]:
    """Compare names and sizes of a published directory's files with its manifest; return it.

    Hidden files are ignored, and no content is read. Raises the errors of `verify_directory`.
    """
    listed = read_manifest(directory)
    for path in sorted(directory.rglob("*")):
        found_name = path.relative_to(directory)
        is_hidden = any(part.startswith(".") for part in found_name.parts)
        known = found_name.as_posix() in listed or found_name == Path(MANIFEST_NAME)
        if path.is_file() and not is_hidden and not known:
            raise DamagedDirectoryError(f"{directory.name}: '{found_name}' is not in the manifest")
    for name, expected in listed.items():
        path = directory / name
        if not path.is_file():
            raise DamagedDirectoryError(f"{directory.name}: {name!r} is in the manifest but gone")
        if (size_bytes := path.stat().st_size) != expected.size_bytes:
            raise DamagedDirectoryError(
                f"{directory.name}: {name!r} differs from its manifest: found {size_bytes:,} "
                f"bytes, expected {expected.size_bytes:,}"
            )
    return listed


def check_listed(directory: Path, name: str, expected: ListedFile, found: ListedFile) -> None:
    """Raise `DamagedDirectoryError` if the size or hash of a file differs from the manifest."""
    if found != expected:
        raise DamagedDirectoryError(
            f"{directory.name}: {name!r} differs from its manifest: found {found._asdict()}, "
            f"expected {expected._asdict()}"
        )


def _parse_entry(entry: Any) -> ListedFile:
    parsed = ListedFile(entry["size_bytes"], entry["sha256"])
    if not isinstance(parsed.size_bytes, int) or not isinstance(parsed.sha256, str):
        raise TypeError("a size or hash has the wrong type")
    return parsed
