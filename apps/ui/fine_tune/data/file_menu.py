"""The menu of files of rows, and uploads that become such files.

Files that cannot be used are listed only on request.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import File
from apps.ui import markup
from apps.ui.figures import format_bytes
from apps.ui.protection.uploads import UPLOAD_LIFETIME_S, UploadFolder

_logger = logging.getLogger(__name__)

HANDBOOK_FILE_ID = "file-handbook"
HANDBOOK_NAME = "The bundled handbook"
_UNKNOWN_COLUMNS = "unknown_columns"
_PURPOSE = "fine-tune"
CHECK_PATIENCE_S = 5.0
CHECK_INTERVAL_S = 0.25


def is_usable(file: File) -> bool:
    """Return whether a job can learn from a file, perhaps once its columns are chosen."""
    return file.status != "error" or has_unknown_columns(file)


def has_unknown_columns(file: File) -> bool:
    """Return whether no format knows the columns of a file, so that they must be chosen."""
    return file.error_code == _UNKNOWN_COLUMNS


def list_file_choices(
    files: Sequence[File], now: float, kept: str | None = None, *, shows_all: bool = False
) -> list[tuple[str, str]]:
    """List the entries of the menu: the bundled handbook first, then the newest.

    Files that cannot be used are left out unless `shows_all`, except for `kept`. Equal entries get
    a part of their ids.
    """
    offered = [file for file in files if shows_all or is_usable(file) or file.id == kept]
    ordered = sorted(offered, key=lambda file: file.id != HANDBOOK_FILE_ID)
    labels = [(_label_file(file, now), file.id) for file in ordered]
    counts = Counter(label for label, _ in labels)
    return [
        (f"{label} · {file_id[-6:]}" if counts[label] > 1 else label, file_id)
        for label, file_id in labels
    ]


def _label_file(file: File, now: float) -> str:
    parts = [HANDBOOK_NAME if file.id == HANDBOOK_FILE_ID else file.filename]
    parts += [format_bytes(file.bytes), *_count_rows(file)]
    if file.id != HANDBOOK_FILE_ID:
        parts.append(markup.format_age(now - file.created_at))
    return " · ".join(parts)


def _count_rows(file: File) -> list[str]:
    if file.status == "uploaded":
        return ["being checked"]
    if file.status == "error":
        return ["custom column names" if is_usable(file) else "cannot be used"]
    if file.check is None or file.check.num_rows is None:
        return []
    return [f"{file.check.num_rows:,} {'row' if file.check.num_rows == 1 else 'rows'}"]


def choose_file(files: Sequence[File], wanted: str | None) -> str | None:
    """Return the id of the wanted file, or of the first one that is offered."""
    if wanted and any(file.id == wanted for file in files):
        return wanted
    choices = list_file_choices(files, 0)
    return choices[0][1] if choices else None


async def list_files(client: ApiClient) -> list[File]:
    """List the files of rows; those that jobs wrote are not among them."""
    return await client.files.list_all(_PURPOSE)


async def wait_for_check(client: ApiClient, data: str) -> None:
    """Wait for the check of an upload, but not for that of a large file."""
    deadline = time.monotonic() + CHECK_PATIENCE_S
    while await is_being_checked(client, data) and time.monotonic() < deadline:
        await asyncio.sleep(CHECK_INTERVAL_S)


async def is_being_checked(client: ApiClient, data: str) -> bool:
    """Return whether an upload is still being checked; not if the API cannot tell."""
    try:
        return (await client.files.get(data)).status == "uploaded"
    except ApiClientError as exc:
        _logger.warning("The check of %s cannot be read: %s", data, exc)
        return False


def count_unusable(files: Sequence[File]) -> int:
    """Count the files that are offered only on request."""
    return sum(not is_usable(file) for file in files)


async def add_file(client: ApiClient, uploads: UploadFolder, path: str) -> str:
    """Send an upload to the API, and return the id of the new file.

    Raises `ForeignFileError` for a path that is not an upload to this page, and `ApiClientError`.
    """
    try:
        with uploads.open(path) as content:
            return (await client.files.upload(Path(path).name, content)).id
    finally:
        uploads.delete(path)
        uploads.delete_older_than(UPLOAD_LIFETIME_S)
