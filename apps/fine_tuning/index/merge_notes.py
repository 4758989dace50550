"""Notes on the merges of adapters: one file per new model, which all replicas of the API read.

While a merge is queued or works, its process owns a scratch folder that is named after the new
model. A note without an end whose folder has no owner is of a process that was killed.
"""

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from serving.store.clean_up import MERGE_PREFIX
from storage import versioned_json
from storage.durable import DamagedFileError
from storage.layout import StorageLayout
from storage.scratch import ScratchFolder, list_scratch

_MAX_NOTES = 100
_LOST = "the server ended while it merged the adapter; merge it again"


class MergeFailure(BaseModel):
    """Why a merge failed, as the error of a request."""

    model_config = ConfigDict(frozen=True)

    status: int
    message: str
    code: str | None = None


class MergeNote(BaseModel):
    """The state of a merge of an adapter into the new model `id`; `created` is in Unix seconds."""

    model_config = ConfigDict(frozen=True)

    id: str
    adapter: str
    created: float
    status: Literal["merging", "succeeded", "failed"] = "merging"
    error: MergeFailure | None = None


def list_merging(layout: StorageLayout) -> list[str]:
    """Return the ids of the models that adapters are being merged into, by any process."""
    names = list_scratch(layout.models, MERGE_PREFIX)
    return [name.removeprefix(MERGE_PREFIX).rpartition("-")[0] for name in names]


def reserve_merge(layout: StorageLayout, model_id: str) -> ScratchFolder:
    """Create the folder that reserves the id of a new model until it is removed."""
    return ScratchFolder(layout.models, f"{MERGE_PREFIX}{model_id}-")


def write_merge(layout: StorageLayout, note: MergeNote) -> None:
    """Write a note, and remove the oldest of too many."""
    layout.store.merges.mkdir(exist_ok=True)
    value = note.model_dump(mode="json")
    versioned_json.write_object(layout.store.merges / f"{note.id}.json", value)
    for old in sorted(_list_notes(layout), key=_find_age)[_MAX_NOTES:]:
        old.unlink(missing_ok=True)


def read_merges(layout: StorageLayout, adapter_id: str) -> list[MergeNote]:
    """Return the merges of an adapter, newest first; one that cannot be read is left out."""
    paths = _list_notes(layout)
    notes = [note for path in paths if (note := _read(path)) and note.adapter == adapter_id]
    merging = list_merging(layout)
    for index, note in enumerate(notes):
        if note.status == "merging" and note.id not in merging:
            # It has ended since it was read, or its process was killed.
            again = _read(layout.store.merges / f"{note.id}.json") or note
            if again.status == "merging":
                failure = MergeFailure(status=503, message=_LOST, code="merge_lost")
                again = note.model_copy(update={"status": "failed", "error": failure})
            notes[index] = again
    return sorted(notes, key=lambda note: -note.created)


def begin_note(model_id: str, adapter_id: str) -> MergeNote:
    """Return the note on a merge that begins now."""
    return MergeNote(id=model_id, adapter=adapter_id, created=time.time())


def _list_notes(layout: StorageLayout) -> list[Path]:
    return list(layout.store.merges.glob("[!.]*.json"))


def _read(path: Path) -> MergeNote | None:
    try:
        return MergeNote.model_validate(versioned_json.read_object(path))
    except (FileNotFoundError, DamagedFileError, ValidationError):
        return None


def _find_age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
