"""Notes on transfers from and to the hub: one file each, which all replicas of the API read.

While a transfer works, its process owns a scratch folder that is named after it. A note without an
end whose folder has no owner is of a process that was killed.
"""

import time
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from apps.errors import ApiError, not_found
from serving.store.clean_up import HUB_PREFIX
from storage import versioned_json
from storage.durable import DamagedFileError
from storage.layout import StorageLayout, is_id, new_id
from storage.locks import lock_exclusive
from storage.scratch import ScratchFolder, list_scratch

_MAX_NOTES = 100
_LOST = "the server ended during this transfer; start it again"
_CANCEL_SUFFIX = ".cancel"

TransferKind = Literal["install", "push"]
TransferStep = Literal["listing", "downloading", "checking", "installing", "uploading"]


class TransferFailure(BaseModel):
    """Why a transfer failed, as the error of a request."""

    model_config = ConfigDict(frozen=True)

    status: int
    message: str
    code: str | None = None


class TransferNote(BaseModel):
    """The state of a transfer of a model from the hub (`install`) or to it (`push`).

    `created` is in Unix seconds, `commit` is that of the hub, and `url` is where a pushed model is.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    kind: TransferKind
    model: str
    repository: str
    revision: str | None = None
    commit: str | None = None
    created: float
    step: TransferStep = "listing"
    bytes: int = 0
    total_bytes: int | None = None
    status: Literal["running", "succeeded", "failed", "cancelled"] = "running"
    url: str | None = None
    error: TransferFailure | None = None


class ComingBytes(NamedTuple):
    """The bytes of the models that are being downloaded: of all files, and not yet received."""

    total: int
    missing: int


def begin_transfer(kind: TransferKind, model_id: str, repository: str) -> TransferNote:
    """Return the note on a transfer that begins now."""
    return TransferNote(
        id=new_id("transfer"),
        kind=kind,
        model=model_id,
        repository=repository,
        created=time.time(),
    )


def reserve_transfer(layout: StorageLayout, note: TransferNote) -> ScratchFolder:
    """Create the folder that a transfer works in; the transfer has ended when it is removed."""
    return ScratchFolder(layout.models, f"{HUB_PREFIX}{note.id}-")


def write_transfer(layout: StorageLayout, note: TransferNote) -> None:
    """Write a note; a new one removes the oldest of too many, but none of a running transfer."""
    layout.store.transfers.mkdir(exist_ok=True)
    path = layout.store.transfers / f"{note.id}.json"
    is_new = not path.exists()
    versioned_json.write_object(path, note.model_dump(mode="json"))
    if is_new:
        owned = _list_owned(layout)
        for old in _list_notes(layout)[_MAX_NOTES:]:
            if old.stem not in owned:
                old.unlink(missing_ok=True)
                old.with_suffix(_CANCEL_SUFFIX).unlink(missing_ok=True)


def list_transfers(layout: StorageLayout) -> list[TransferNote]:
    """Return all transfers, newest first; a note that cannot be read is left out."""
    found = [_read(path) for path in _list_notes(layout)]
    return _find_ends(layout, [note for note in found if note is not None])


def get_transfer(layout: StorageLayout, transfer_id: str) -> TransferNote:
    """Return one transfer; raises `ApiError` 404."""
    note = None
    if is_id(transfer_id):
        note = _read(layout.store.transfers / f"{transfer_id}.json")
    if note is None:
        raise not_found("transfer", transfer_id)
    return _find_ends(layout, [note])[0]


def list_installing(layout: StorageLayout) -> list[str]:
    """Return the ids of the models that are being installed, by any process."""
    return [note.model for note in _list_running_installs(layout)]


def count_coming_bytes(layout: StorageLayout) -> ComingBytes:
    """Return the bytes of all downloads in progress that the hub has listed, by any process."""
    listed = [note for note in _list_running_installs(layout) if note.total_bytes is not None]
    total = sum(note.total_bytes or 0 for note in listed)
    return ComingBytes(total, total - sum(note.bytes for note in listed))


def _list_running_installs(layout: StorageLayout) -> list[TransferNote]:
    if not _list_owned(layout):  # no note needs to be read
        return []
    return [
        note
        for note in list_transfers(layout)
        if note.kind == "install" and note.status == "running"
    ]


def request_cancellation(layout: StorageLayout, transfer_id: str) -> TransferNote:
    """Ask the process of a transfer to end it.

    Raises `ApiError` 404, or 409 if it has ended, or its model is being moved into the store.
    """
    with lock_exclusive(layout.store.transfer_lock):  # that `begin_moving` takes too
        note = get_transfer(layout, transfer_id)
        if note.status != "running":
            message = f"transfer {transfer_id!r} has ended already: it {_describe_end(note)}"
            raise ApiError(409, message, param="id", code="transfer_ended")
        if note.step == "installing":
            message = f"transfer {transfer_id!r} is complete, and {note.model!r} is being installed"
            raise ApiError(409, message, param="id", code="transfer_ended")
        _name_cancellation(layout, transfer_id).touch()
    return note


def is_cancelled(layout: StorageLayout, transfer_id: str) -> bool:
    """Return whether the cancellation of a transfer was requested."""
    return _name_cancellation(layout, transfer_id).exists()


def end_transfer(layout: StorageLayout, note: TransferNote) -> None:
    """Write the note of a transfer that has ended."""
    write_transfer(layout, note)
    _name_cancellation(layout, note.id).unlink(missing_ok=True)


def _describe_end(note: TransferNote) -> str:
    return "was cancelled" if note.status == "cancelled" else note.status


def _name_cancellation(layout: StorageLayout, transfer_id: str) -> Path:
    return layout.store.transfers / f"{transfer_id}{_CANCEL_SUFFIX}"


def _list_owned(layout: StorageLayout) -> list[str]:
    names = list_scratch(layout.models, HUB_PREFIX)
    return [name.removeprefix(HUB_PREFIX).rpartition("-")[0] for name in names]


def _find_ends(layout: StorageLayout, notes: list[TransferNote]) -> list[TransferNote]:
    """Return notes in which those whose process was killed have failed."""
    owned = _list_owned(layout)
    return [
        _end_lost(layout, note) if note.status == "running" and note.id not in owned else note
        for note in notes
    ]


def _end_lost(layout: StorageLayout, note: TransferNote) -> TransferNote:
    """Return a note without an owner as it is now: it has ended since, or its process was lost."""
    again = _read(layout.store.transfers / f"{note.id}.json") or note
    if again.status != "running":
        return again
    failure = TransferFailure(status=503, message=_LOST, code="transfer_lost")
    return again.model_copy(update={"status": "failed", "error": failure})


def _list_notes(layout: StorageLayout) -> list[Path]:
    """Return the files of all notes, newest first: their ids sort by time."""
    return sorted(layout.store.transfers.glob("[!.]*.json"), reverse=True)


def _read(path: Path) -> TransferNote | None:
    try:
        return TransferNote.model_validate(versioned_json.read_object(path))
    except (FileNotFoundError, DamagedFileError, ValidationError):
        return None
