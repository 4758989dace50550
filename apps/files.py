"""Uploaded files: each has its own folder with the bytes, a `file.json` and what a check found."""

import re
import shutil
import time
from collections.abc import AsyncIterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from apps.errors import ApiError, not_found
from storage import durable
from storage.layout import StorageLayout, new_id

_RECORD_NAME = "file.json"
_CHECK_NAME = "check.json"

Purpose = Literal["fine-tune", "fine-tune-results"]


class FileStore:
    """The files under a storage root; a file exists once its `file.json` does."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout

    async def save(
        self, chunks: AsyncIterable[bytes], filename: str, purpose: Purpose, max_bytes: int
    ) -> dict[str, Any]:
        """Write an upload as it comes in; returns its record.

        Raises `ApiError` 413 beyond `max_bytes`, 400 if it is empty or not text; nothing is left.
        """
        folder = self._layout.file(new_id("file"))
        folder.mkdir()
        try:
            content = folder / make_safe_name(filename)
            size = await _write_chunks(content, chunks, max_bytes)
            _check_text(content, filename)
            durable.fsync_file(content)
            _record_file(content, filename, purpose, size)
            return self.get(folder.name)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

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
        _record_file(path, filename, purpose, len(content))

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

    def delete(self, file_id: str) -> None:
        """Forget a file; its record goes first, so that half a file never exists."""
        self.get(file_id)
        folder = self._folder(file_id)
        (folder / _RECORD_NAME).unlink()
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


async def _write_chunks(path: Path, chunks: AsyncIterable[bytes], max_bytes: int) -> int:
    size = 0
    with path.open("wb") as file:
        async for chunk in chunks:
            size += len(chunk)
            if size > max_bytes:
                raise ApiError(
                    413, f"the file is larger than {max_bytes:,} bytes, the most that is accepted"
                )
            file.write(chunk)
    if size == 0:
        raise ApiError(400, "the file is empty; expected rows as JSON, JSONL or CSV", param="file")
    return size


def _check_text(path: Path, filename: str) -> None:
    with path.open(encoding="utf-8") as file:
        try:
            while file.read(1 << 20):
                continue
        except UnicodeDecodeError as exc:
            raise ApiError(
                400,
                f"{filename!r} is not text ({exc.reason} in UTF-8); expected JSON, JSONL or CSV",
                param="file",
            ) from exc


def _record_file(content: Path, filename: str, purpose: Purpose, size_bytes: int) -> None:
    record = {
        "id": content.parent.name,
        "object": "file",
        "bytes": size_bytes,
        "created_at": int(time.time()),
        "filename": filename,
        "purpose": purpose,
        "sha256": durable.hash_file(content),
    }
    durable.write_json(content.parent / _RECORD_NAME, record)
