"""Transfers of models from and to the hub, in the background of a replica of the API.

A model is downloaded into a scratch folder beside the store by a process of its own. The store
checks it like every model from elsewhere, and moves it in: nothing of it is visible before.
"""

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from apps.errors import ApiError, invalid_input, to_response
from apps.fine_tuning.index.run_lookup import check_new_model
from apps.http_api.dependencies import Services
from apps.hub.hub_process import ListedModel
from apps.hub.transfer_notes import (
    TransferFailure,
    TransferNote,
    begin_transfer,
    count_coming_bytes,
    end_transfer,
    is_cancelled,
    list_transfers,
    reserve_transfer,
    write_transfer,
)
from apps.hub.transfer_process import CancelledTransferError, TransferEvents, run_transfer
from apps.usage_limits import check_model_space
from serving.errors import InvalidRequestError, OverloadedError
from serving.store.import_process import ModelRefusedError
from serving.store.model_store import ModelStore
from serving.store.stored_model import StoredModel
from storage.durable import DamagedDirectoryError
from storage.locks import lock_exclusive
from storage.scratch import ScratchFolder
from storage.versioned_json import NewerFormatError
from system.free_resources import measure_free_disk

logger = logging.getLogger(__name__)

MAX_TRANSFERS = 4
STALLED_S = 1800.0
"""Seconds without a byte after which a transfer is ended; hashing a large file takes minutes."""
_RETRY_AFTER_S = 60
_EXTRA_BYTES = 64 << 20  # of the library's own files beside those of the model


class TransferProgress:
    """A transfer in progress: its note, and the folder that it works in."""

    def __init__(self, services: Services, note: TransferNote, scratch: ScratchFolder) -> None:
        self.services = services
        self.note = note
        self.scratch = scratch
        self.mark_alive()

    def mark_alive(self) -> None:
        """Note that something was received or sent now."""
        self._changed_at = time.monotonic()

    def update(self, **changes: object) -> None:
        """Write a changed note; nothing is written if nothing changes."""
        changed = self.note.model_copy(update=changes)
        if changed != self.note:
            self.note = changed
            self.mark_alive()
            write_transfer(self.services.layout, changed)

    def check_cancelled(self) -> None:
        """Raise `CancelledTransferError` if a client has cancelled this transfer."""
        if is_cancelled(self.services.layout, self.note.id):
            raise CancelledTransferError

    def begin_moving(self) -> None:
        """Note that the model is moved in and cannot be cancelled any more; raises if it was."""
        with lock_exclusive(self.services.layout.store.transfer_lock):
            self.check_cancelled()
            self.update(step="installing")

    def check_continues(self) -> None:
        """Raise if the cancellation of this transfer was requested, or if it has stalled."""
        self.check_cancelled()
        if time.monotonic() - self._changed_at > STALLED_S:
            moved = "received" if self.note.kind == "install" else "sent"
            message = f"no byte was {moved} for {STALLED_S / 60:g} minutes; try again"
            raise ApiError(504, message, code="hub_unreachable")

    def measure_download(self, folder: Path) -> None:
        """Update the received bytes; raises if the download is to end."""
        size_bytes, total_bytes = _measure_folder(folder), self.note.total_bytes
        if total_bytes is None:  # the hub has not listed the model
            self.check_continues()
            return
        if size_bytes > total_bytes + _EXTRA_BYTES:
            message = f"the hub sends more than the {total_bytes:,} bytes that it lists"
            raise ApiError(502, message, code="download_damaged")
        self.update(bytes=min(size_bytes, total_bytes))
        self.check_continues()


def begin_install(
    services: Services, repository: str, revision: str | None, model_id: str, base_id: str | None
) -> TransferNote:
    """Start installing a model of the hub; reserve the id of the new model.

    `base_id` is the base model of an adapter. Raises `ApiError` 403 if the operator does not permit
    the repository, 409 for an id that is taken and 507 if the store has no room, and
    `OverloadedError` if too many transfers are in progress.
    """
    if not services.hub.permits_install(repository):
        raise _forbid(repository, "source", "hub.install", services.hub.install)
    note = begin_transfer("install", model_id, repository)
    note = note.model_copy(update={"revision": revision})
    layout = services.layout
    with lock_exclusive(layout.store.transfer_lock):
        _check_id(services, model_id)
        _check_number(services)
        stored_bytes = services.model_sizes.measure() + count_coming_bytes(layout).total
        check_model_space(stored_bytes, services.limits, 1)
        progress = _reserve(services, note)
    _begin(progress, lambda: _install(progress, base_id))
    return note


def begin_push(
    services: Services, model: StoredModel, repository: str, *, private: bool
) -> TransferNote:
    """Start pushing a model of the store to the hub; it cannot be deleted meanwhile.

    Raises `ApiError` 403 if the operator does not permit the repository, and `OverloadedError` if
    too many transfers are in progress.
    """
    if not services.hub.permits_push(repository):
        raise _forbid(repository, "repository", "hub.push", services.hub.push)
    total_bytes = services.model_sizes.measure_model(model.id)
    note = begin_transfer("push", model.id, repository)
    note = note.model_copy(update={"step": "checking", "total_bytes": total_bytes})
    with ExitStack() as locks:
        locks.enter_context(model.lock_shared())
        with lock_exclusive(services.layout.store.transfer_lock):
            _check_number(services)
            progress = _reserve(services, note)
        held = locks.pop_all()
    _begin(progress, lambda: _push(progress, model, private=private), held)
    return note


def _forbid(repository: str, param: str, setting: str, patterns: tuple[str, ...]) -> ApiError:
    permitted = ", ".join(map(repr, patterns)) or "none"
    message = (
        f"this server does not permit {repository!r}: its operator permits {permitted} "
        f"({setting} in deploy.yaml)"
    )
    return ApiError(403, message, param=param, code="hub_not_permitted")


def _check_id(services: Services, model_id: str) -> None:
    """Raise for an id that a new model cannot have; the field at fault is `id`."""
    try:
        check_new_model(services.layout, services.runs, model_id)
    except InvalidRequestError as exc:
        raise InvalidRequestError(exc.message, param="id", code=exc.code) from exc
    except ApiError as exc:
        raise ApiError(exc.status, exc.message, param="id", code=exc.code) from exc


def _check_number(services: Services) -> None:
    running = [one for one in list_transfers(services.layout) if one.status == "running"]
    if len(running) >= MAX_TRANSFERS:
        message = f"{len(running)} transfers of the hub are in progress; try again when one is done"
        raise OverloadedError(message, retry_after_s=_RETRY_AFTER_S)


def _reserve(services: Services, note: TransferNote) -> TransferProgress:
    scratch = reserve_transfer(services.layout, note)
    try:
        write_transfer(services.layout, note)
    except BaseException:
        scratch.remove()
        raise
    return TransferProgress(services, note, scratch)


def _begin(
    progress: TransferProgress, work: Callable[[], None], held: ExitStack | None = None
) -> None:
    target = (progress, work, held or ExitStack())
    Thread(target=_finish, args=target, name="hub-transfer", daemon=True).start()


def _finish(progress: TransferProgress, work: Callable[[], None], held: ExitStack) -> None:
    """Do the work, and write the result into the note; the body of the thread."""
    try:
        with held:
            work()
    except CancelledTransferError:
        ended = progress.note.model_copy(update={"status": "cancelled"})
    except Exception as exc:  # noqa: BLE001 - the thread ends here, and the note has the reason
        ended = progress.note.model_copy(
            update={"status": "failed", "error": _describe(progress, exc)}
        )
    else:
        ended = progress.note.model_copy(update={"status": "succeeded"})
    progress.scratch.remove_content()  # which may have filled the disk
    try:
        end_transfer(progress.services.layout, ended)  # while the folder has an owner
    except OSError:
        logger.exception("the end of transfer %s could not be written", ended.id)
    finally:
        progress.scratch.remove()


def _describe(progress: TransferProgress, exc: Exception) -> TransferFailure:
    note = progress.note
    logger.warning("%s of %s failed: %s", note.kind, note.repository, exc)
    response = to_response(exc)
    error = json.loads(bytes(response.body))["error"]
    message = error["message"].replace(str(progress.services.layout.root), "<storage>")
    return TransferFailure(status=response.status_code, message=message, code=error["code"])


def _install(progress: TransferProgress, base_id: str | None) -> None:
    services, note, scratch = progress.services, progress.note, progress.scratch
    folder = scratch.path / note.model  # refusals of its content name it
    folder.mkdir()
    revision = () if note.revision is None else ("--revision", note.revision)
    events = TransferEvents(
        tick=lambda: progress.measure_download(folder),
        listed=lambda listed: _accept(progress, listed),
    )
    run_transfer(["install", *revision, note.repository, str(folder)], scratch, events)
    progress.update(bytes=progress.note.total_bytes, step="checking")
    progress.check_cancelled()
    store = ModelStore(services.layout)
    try:
        with invalid_input("source", only=ModelRefusedError):
            store.import_directory(
                folder,
                note.model,
                base_id=base_id,
                converts_tokenizer=True,
                before_move=progress.begin_moving,
            )
    except FileExistsError as exc:  # the id was taken meanwhile
        raise ApiError(409, str(exc), param="id") from None


def _accept(progress: TransferProgress, listed: ListedModel) -> None:
    """Raise `ApiError` if a model may not be downloaded, or has no room here."""
    services, note = progress.services, progress.note
    if not services.hub.permits_install(listed["id"]):  # the repository was renamed on the hub
        raise _forbid(listed["id"], "source", "hub.install", services.hub.install)
    size_bytes = listed["bytes"]
    if size_bytes > services.max_model_bytes:
        message = (
            f"{note.repository!r} has {size_bytes:,} bytes, and max_model_bytes is "
            f"{services.max_model_bytes:,}; choose a smaller model"
        )
        raise ApiError(413, message, param="source", code="model_too_large")
    with lock_exclusive(services.layout.store.transfer_lock):
        coming = count_coming_bytes(services.layout)
        stored_bytes = services.model_sizes.measure() + coming.total
        check_model_space(stored_bytes, services.limits, size_bytes)
        free_bytes = measure_free_disk(services.layout.models) - coming.missing
        if size_bytes + services.min_free_bytes > free_bytes:
            message = (
                f"{note.repository!r} has {size_bytes:,} bytes, and the server's disk has "
                f"{max(0, free_bytes - services.min_free_bytes):,} left for it"
            )
            raise ApiError(507, message, code="disk_full")
        progress.update(commit=listed["commit"], total_bytes=size_bytes, step="downloading")


def _push(progress: TransferProgress, model: StoredModel, *, private: bool) -> None:
    try:
        model.verify()
    except DamagedDirectoryError as exc:
        raise ApiError(409, str(exc), param="model", code="model_damaged") from exc
    except NewerFormatError as exc:
        message = f"model {model.id!r} needs a newer version of Tuneserve: {exc.reason}"
        raise ApiError(409, message, param="model", code="newer_format") from exc
    progress.check_cancelled()
    progress.update(step="uploading")
    total_bytes = progress.note.total_bytes or 0
    events = TransferEvents(
        tick=progress.check_continues,
        target=lambda repository: _accept_target(progress.services, repository),
        sending=progress.mark_alive,
        sent=lambda sent_bytes: progress.update(bytes=min(sent_bytes, total_bytes)),
    )
    visibility = ("--private",) if private else ()
    arguments = ["push", *visibility, str(model.path), progress.note.repository]
    progress.update(url=run_transfer(arguments, progress.scratch, events))


def _accept_target(services: Services, repository: str) -> None:
    """Raise `ApiError` if the repository was renamed on the hub to one that is not permitted."""
    if not services.hub.permits_push(repository):
        raise _forbid(repository, "repository", "hub.push", services.hub.push)


def _measure_folder(folder: Path) -> int:
    """Return the bytes of all files in a folder, as far as they have been written."""
    size_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size_bytes += os.lstat(f"{parent}/{name}").st_size
            except FileNotFoundError:  # renamed at the end of its download
                continue
    return size_bytes
