"""Backups of a storage root, consistent while the application runs.

Aliases, run records and the list of models are read at one moment, under the lock that every
publication, deletion and alias move takes; models are locked against deletion until they are
copied. Every other file of a run is append-only, or complete without the others. The record of an
evaluation is read before its rows, which are append-only.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from apps.evaluations.evaluation_store import RECORD_NAME
from storage import durable
from storage.layout import StorageLayout
from storage.locks import lock_exclusive, lock_shared
from storage.regular_file import read_regular
from storage.snapshots.backup import take_snapshot
from storage.snapshots.snapshot import Snapshot
from storage.snapshots.snapshot_writer import (
    EntryGoneError,
    EntryUnreadableError,
    OnBytes,
    SnapshotWriter,
    find_files,
    reading,
)
from training.checkpoint.format import (
    LAST_COMPLETE_NAME,
    Checkpoint,
    list_checkpoints,
    lock_checkpoint,
)
from training.run.folder import RunFolder

logger = logging.getLogger(__name__)

# Entries of a run that its next start recreates, or that belong to the process that computes it.
_LEFT_OUT_OF_RUNS = frozenset({"ray", "heartbeat"})


def back_up(layout: StorageLayout, folder: Path, on_bytes: OnBytes) -> Snapshot:
    """Make a snapshot of everything that cannot be computed again; return it.

    The token cache, uploads in progress and incomplete checkpoints are omitted. Files, runs, models
    and checkpoints that are deleted meanwhile or cannot be read are omitted too, and named in the
    manifest. Raises `BackupError`, and `OSError` if the snapshot cannot be written.
    """
    return take_snapshot(
        layout.root, folder, lambda writer: _copy_storage(layout, writer), on_bytes
    )


def _copy_storage(layout: StorageLayout, writer: SnapshotWriter) -> None:
    with ExitStack() as locks:
        with lock_exclusive(layout.store.alias_lock):
            records = _read_records(layout, writer)
            aliases = {
                path: read_regular(path)
                for path in (layout.store.aliases, layout.store.aliases_copy)
                if path.is_file()
            }
            models = _lock_published_models(layout, writer, locks)
        for path, content in aliases.items():
            writer.add_bytes(path, content)
        files = _list_visible(layout.files)
        evaluations = _list_visible(layout.evaluations.folder)
        runs = [run.path for run in records]
        writer.add_expected_bytes(sum(map(_measure, [*models, *files, *runs, *evaluations])))
        for entry in (*models, *files):
            with _leave_out_if_unusable(entry, writer):
                _add_entry(entry, writer)
        for run, record in records.items():
            with _leave_out_if_unusable(run.path, writer):
                _copy_run(run, record, writer)
        for entry in evaluations:
            with _leave_out_if_unusable(entry, writer):
                _copy_evaluation(entry, writer)
        folders = (
            *(layout.files, layout.runs, layout.models, layout.evaluations.folder),
            layout.token_cache.parent,
        )
        for path in _list_visible(layout.root):  # logs of hand-overs, keys and similar files
            if path not in (*folders, layout.store.aliases, layout.store.aliases_copy):
                with _leave_out_if_unusable(path, writer):
                    _add_if_file(path, writer)


@contextmanager
def _leave_out_if_unusable(path: Path, writer: SnapshotWriter) -> Iterator[None]:
    """Omit an entry that the body cannot read, or that is gone once the body has copied it.

    The copy of an entry that is deleted meanwhile would be incomplete.
    """
    try:
        try:
            yield
        except EntryGoneError:
            logger.info("%s changed while it was copied", path)
        with reading(path):
            path.lstat()
    except EntryUnreadableError as exc:
        writer.leave_out(path, "unreadable", str(exc))
    except EntryGoneError:
        writer.leave_out(path, "deleted")


def _read_records(layout: StorageLayout, writer: SnapshotWriter) -> dict[RunFolder, bytes]:
    records = {}
    for path in _list_visible(layout.runs):
        run = RunFolder(path)
        try:
            with reading(run.record_file):
                records[run] = read_regular(run.record_file)
        except EntryGoneError:  # a folder without a record is no run
            continue
        except EntryUnreadableError as exc:
            writer.leave_out(path, "unreadable", str(exc))
    return records


def _lock_published_models(
    layout: StorageLayout, writer: SnapshotWriter, locks: ExitStack
) -> list[Path]:
    """Lock every published model against deletion until `locks` is closed."""
    models = []
    for path in _list_visible(layout.models):
        try:
            with reading(path):
                locks.enter_context(lock_shared(path / durable.MANIFEST_NAME))
        except EntryGoneError:  # a folder without a manifest is not a model
            continue
        except EntryUnreadableError as exc:
            writer.leave_out(path, "unreadable", str(exc))
        else:
            models.append(path)
    return models


def _copy_run(run: RunFolder, record: bytes, writer: SnapshotWriter) -> None:
    """Copy a run with its complete checkpoints."""
    # Before the checkpoints: the record must not name one that completes after they are listed.
    _copy_last_complete(run, writer)
    # Before the rest: a resumed run discards what is newer than its checkpoint.
    with _lock_checkpoints(run) as checkpoints:
        for checkpoint in checkpoints:
            with _leave_out_if_unusable(checkpoint, writer):
                writer.add_tree(checkpoint)
    for path in _list_visible(run.path):
        is_model = path == run.model  # published next, or created again from a checkpoint
        if path.name not in _LEFT_OUT_OF_RUNS and path != run.record_file and not is_model:
            _add_entry(path, writer)
    writer.add_bytes(run.record_file, record)


def _copy_evaluation(folder: Path, writer: SnapshotWriter) -> None:
    """Copy an evaluation; one that runs continues after the last row of the copy."""
    record = folder / RECORD_NAME
    with reading(record):
        content = read_regular(record)
    for path in _list_visible(folder):
        if path != record:
            _add_entry(path, writer)
    writer.add_bytes(record, content)


def _copy_last_complete(run: RunFolder, writer: SnapshotWriter) -> None:
    """Copy the record of the last completed checkpoint, if the run has one."""
    path = run.checkpoints / LAST_COMPLETE_NAME
    with suppress(EntryGoneError):
        with reading(path):
            content = read_regular(path)
        writer.add_bytes(path, content)


@contextmanager
def _lock_checkpoints(run: RunFolder) -> Iterator[list[Path]]:
    """Lock the complete checkpoints of a run against removal while the body copies them."""
    with ExitStack() as locks:
        paths = []
        for checkpoint in _list_checkpoints(run):
            try:
                with reading(checkpoint.path):
                    locks.enter_context(lock_checkpoint(checkpoint))
            except EntryGoneError:  # superseded just now
                continue
            paths.append(checkpoint.path)
        yield paths


def _list_checkpoints(run: RunFolder) -> list[Checkpoint]:
    """List the complete checkpoints of a run; raises `EntryUnreadableError`."""
    try:
        with reading(run.checkpoints):
            return list_checkpoints(run.checkpoints)
    except EntryGoneError:
        return []


def _list_visible(folder: Path) -> list[Path]:
    """List the entries of a folder except hidden ones; raises as `reading` does."""
    with reading(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _add_entry(path: Path, writer: SnapshotWriter) -> None:
    """Copy a file, or a folder with its contents; raises `EntryUnreadableError`."""
    with reading(path):
        is_folder = path.is_dir() and not path.is_symlink()
    if is_folder:
        writer.add_tree(path)
    else:
        _add_if_file(path, writer)


def _add_if_file(path: Path, writer: SnapshotWriter) -> None:
    """Copy a regular file if it still exists; raises `EntryUnreadableError`."""
    try:
        with reading(path):
            is_file = path.is_file() and not path.is_symlink()
        if is_file:
            writer.add_file(path)
    except EntryGoneError:  # a withdrawn pause request, or a rotated log
        logger.info("%s was deleted while it was copied", path)


def _measure(path: Path) -> int:
    """Return the size of a file or folder in bytes; only the progress bar uses it."""
    sizes = 0
    with suppress(OSError):  # unreadable entries are reported when they are copied
        if path.is_file():
            return path.stat().st_size
        for found in find_files(path):
            with suppress(FileNotFoundError):
                sizes += found.stat().st_size
    return sizes
