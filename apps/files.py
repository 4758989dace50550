"""Uploaded files: each has its own folder with the bytes, a `file.json` and what a check found."""

import hashlib
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from apps.errors import ApiError, not_found
from storage import durable
from storage.layout import StorageLayout, new_id
from storage.locks import HeldError, hold_alone, hold_shared

_RECORD_NAME = "file.json"
_CHECK_NAME = "check.json"

Purpose = Literal["fine-tune", "fine-tune-results"]


class FileStore:
    """The files under a storage root; a file exists once its `file.json` does."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout

    def take_in(self, content: Path, name: str, record: dict[str, Any]) -> dict[str, Any]:
        """Take over a file that was written in a scratch folder; returns it as it is shown.

        The folder that `content` is in becomes the file's own, with `name` for the bytes.
        """
        building = content.parent / new_id("file")
        building.mkdir()
        content.rename(building / name)
        durable.fsync_file(building / name)
        _write_record(building, record)
        final = self._layout.file(building.name)
        building.rename(final)
        durable.fsync_directory(final.parent)
        return self.get(final.name)

    def add(
        self, file_id: str, content: bytes, filename: str, purpose: Purpose = "fine-tune"
    ) -> None:
        """Put a file of our own beside the uploads, replacing an earlier version of it."""
        folder = self._layout.file(file_id)
        folder.mkdir(exist_ok=True)
        path = folder / make_safe_name(filename)
        if path.is_file() and path.read_bytes() == content and (folder / _RECORD_NAME).is_file():
            return
        (folder / _CHECK_NAME).unlink(missing_ok=True)
        durable.write_bytes(path, content)
        found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        _write_record(folder, {"filename": filename, "purpose": purpose, **found})

    def list_files(self) -> list[dict[str, Any]]:
        """All files as they are shown, newest first."""
        found = []
        for path in self._layout.files.glob(f"*/{_RECORD_NAME}"):
            with suppress(ApiError):  # deleted just now
                found.append(self.get(path.parent.name))
        return sorted(found, key=lambda file: (file["created_at"], file["id"]), reverse=True)

    def list_unchecked(self) -> list[str]:
        """The ids of files of rows that are still to be checked, oldest first."""
        return [
            path.parent.name
            for path in sorted(self._layout.files.glob(f"*/{_RECORD_NAME}"))
            if not (path.parent / _CHECK_NAME).is_file()
            and durable.read_json(path)["purpose"] == "fine-tune"
        ]

    def note_check(
        self,
        file_id: str,
        status: Literal["processed", "error"],
        details: str | None,
        found: dict[str, Any] | None,
    ) -> None:
        """Note what a check of a file found: whether its rows can be used, and their counts."""
        check = {"status": status, "status_details": details, "check": found}
        with suppress(FileNotFoundError):  # deleted meanwhile
            durable.write_json(self._folder(file_id) / _CHECK_NAME, check)

    def get(self, file_id: str) -> dict[str, Any]:
        """One file as it is shown; raises `ApiError` 404."""
        folder = self._folder(file_id)
        try:
            record: dict[str, Any] = durable.read_json(folder / _RECORD_NAME)
        except FileNotFoundError:
            raise not_found("file", file_id) from None
        is_of_rows = record["purpose"] == "fine-tune"
        check = {"status": "uploaded" if is_of_rows else "processed", "status_details": None}
        with suppress(FileNotFoundError):
            check = durable.read_json(folder / _CHECK_NAME)
        return {**record, **check}

    def find_content(self, file_id: str) -> Path:
        """The path of a file's bytes; raises `ApiError` 404."""
        return self._folder(file_id) / make_safe_name(self.get(file_id)["filename"])

    def hold(self, file_id: str) -> IO[bytes]:
        """Keep a file until what is returned is closed; raises `ApiError` 404."""
        try:
            return hold_shared(self._folder(file_id) / _RECORD_NAME)
        except FileNotFoundError:
            raise not_found("file", file_id) from None

    def delete(self, file_id: str, check: Callable[[], None] = lambda: None) -> None:
        """Forget a file; its record goes first, so that half a file never exists.

        `check` raises if somebody needs it, when nobody can begin to any more. Raises `ApiError`
        404, or 409 where somebody is about to need it.
        """
        folder = self._folder(file_id)
        try:
            with hold_alone(folder / _RECORD_NAME):
                check()
                (folder / _RECORD_NAME).unlink()
        except FileNotFoundError:
            raise not_found("file", file_id) from None
        except HeldError:
            message = f"a job that needs file {file_id!r} is being created"
            raise ApiError(409, message, code="in_use") from None
        shutil.rmtree(folder)

    def _folder(self, file_id: str) -> Path:
        try:
            return self._layout.file(file_id)
        except ValueError:
            raise not_found("file", file_id) from None


def make_safe_name(filename: str) -> str:
    """The name under which a file's bytes are kept: the client's, with nothing that leads away."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", filename.replace("\\", "/").rpartition("/")[2])[-100:]
    return f"data_{name.lstrip('.')}"


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    head = {"id": folder.name, "object": "file", "created_at": int(time.time())}
    durable.write_json(folder / _RECORD_NAME, {**head, **record})
