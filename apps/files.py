"""Uploaded files: each has its own folder with the bytes and a `file.json`."""

import re
import shutil
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

from apps.errors import ApiError, not_found
from storage import durable
from storage.layout import StorageLayout, new_id

_RECORD_NAME = "file.json"


class FileStore:
    """The files under a storage root; a file exists once its `file.json` does."""

    def __init__(self, layout: StorageLayout) -> None:
        self._layout = layout

    async def save(
        self, chunks: AsyncIterable[bytes], filename: str, purpose: str, max_bytes: int
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
            return _record_file(content, filename, purpose, size)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def add(self, file_id: str, source: Path, filename: str) -> None:
        """Put a file of our own beside the uploads, replacing an earlier version of it."""
        folder = self._layout.file(file_id)
        folder.mkdir(exist_ok=True)
        content = folder / make_safe_name(filename)
        durable.write_bytes(content, source.read_bytes())
        _record_file(content, filename, "fine-tune", content.stat().st_size)

    def list_files(self) -> list[dict[str, Any]]:
        """All records, newest first."""
        records = [durable.read_json(path) for path in self._layout.files.glob(f"*/{_RECORD_NAME}")]
        return sorted(
            records, key=lambda record: (record["created_at"], record["id"]), reverse=True
        )

    def get(self, file_id: str) -> dict[str, Any]:
        """One record; raises `ApiError` 404."""
        try:
            record: dict[str, Any] = durable.read_json(self._folder(file_id) / _RECORD_NAME)
        except FileNotFoundError:
            raise not_found("file", file_id) from None
        return record

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


def _record_file(content: Path, filename: str, purpose: str, size_bytes: int) -> dict[str, Any]:
    record = {
        "id": content.parent.name,
        "object": "file",
        "bytes": size_bytes,
        "created_at": int(time.time()),
        "filename": filename,
        "purpose": purpose,
        "status": "processed",
        "sha256": durable.hash_file(content),
    }
    durable.write_json(content.parent / _RECORD_NAME, record)
    return record
