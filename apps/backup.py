"""What of a storage root a backup has, so that it is consistent while the application runs.

Aliases, the records of runs and the list of models are read at one moment, under the lock that
every publication, deletion and move of an alias takes; models are locked against deletion until
they are copied. Everything else of a run is only ever appended to or complete on its own.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from storage import durable
from storage.backup import OnBytes, Snapshot, SnapshotWriter, take_snapshot
from storage.layout import StorageLayout
from storage.locks import hold_shared, take_turn
from training.checkpoint import LAST_COMPLETE_NAME, hold_checkpoint, list_checkpoints
from training.runs import RunFolder

logger = logging.getLogger(__name__)

# Of a run: what its next start would make anew, and the files of the process that computes it.
_LEFT_OUT_OF_RUNS = frozenset({"ray", "heartbeat"})


def back_up(layout: StorageLayout, folder: Path, on_bytes: OnBytes) -> Snapshot:
    """Make a snapshot of all that cannot be computed again; returns it.

    Left out are the cache of tokens, uploads in progress, and incomplete checkpoints.
    """
    return take_snapshot(
        layout.root, folder, lambda writer: _copy_storage(layout, writer), on_bytes
    )


def _copy_storage(layout: StorageLayout, writer: SnapshotWriter) -> None:
    with ExitStack() as held:
        with take_turn(layout.alias_lock):
            records = _read_records(layout)
            aliases = {
                path: path.read_bytes()
                for path in (layout.aliases, layout.aliases_copy)
                if path.is_file()
            }
            models = _hold_models(layout, held)
        for path, content in aliases.items():
            writer.add_bytes(path, content)
        folders = [*models, layout.files, *(run.path for run in records)]
        writer.announce(sum(map(_measure, folders)))
        for model in models:
            writer.add_tree(model)
        writer.add_tree(layout.files)
        for run, record in records.items():
            _copy_run(run, record, writer)
        for path in sorted(layout.root.iterdir()):  # logs of hand-overs, keys and the like
            is_ours = path.name[0] != "." and path not in (layout.aliases, layout.aliases_copy)
            if is_ours and path.is_file() and not path.is_symlink():
                _add_if_there(path, writer)  # a log may be rotated just now


def _read_records(layout: StorageLayout) -> dict[RunFolder, bytes]:
    records = {}
    for path in sorted(layout.runs.iterdir()):
        run = RunFolder(path)
        if path.name[0] != "." and run.record_file.is_file():
            records[run] = run.record_file.read_bytes()
    return records


def _hold_models(layout: StorageLayout, held: ExitStack) -> list[Path]:
    """Lock every published model against deletion until `held` is closed."""
    models = [
        path
        for path in sorted(layout.models.iterdir())
        if path.name[0] != "." and durable.is_published(path)
    ]
    for model in models:
        held.enter_context(hold_shared(model / durable.MANIFEST_NAME))
    return models


def _copy_run(run: RunFolder, record: bytes, writer: SnapshotWriter) -> None:
    """Copy a run with its complete checkpoints; one that is deleted meanwhile is left out."""
    try:
        # Before the checkpoints: it must not name one that is completed after they are listed.
        _copy_last_complete(run, writer)
        # Before the rest: a run that resumes drops what is newer than its checkpoint.
        with _hold_checkpoints(run) as checkpoints:
            for checkpoint in checkpoints:
                writer.add_tree(checkpoint)
        for path in sorted(run.path.iterdir()):
            is_model = path == run.model  # is published next, or made again from a checkpoint
            if path.name in _LEFT_OUT_OF_RUNS or path.name[0] == "." or is_model:
                continue
            if path.is_dir():
                writer.add_tree(path)
            elif path != run.record_file:
                _add_if_there(path, writer)
    except FileNotFoundError:
        writer.drop(run.path)
        return
    if run.record_file.is_file():
        writer.add_bytes(run.record_file, record)
    else:
        writer.drop(run.path)


def _copy_last_complete(run: RunFolder, writer: SnapshotWriter) -> None:
    """Copy the record of the checkpoint that was completed last, of a run that has one."""
    path = run.checkpoints / LAST_COMPLETE_NAME
    if path.is_file():
        writer.add_bytes(path, path.read_bytes())


@contextmanager
def _hold_checkpoints(run: RunFolder) -> Iterator[list[Path]]:
    """Lock the complete checkpoints of a run against their removal while the body copies them."""
    with ExitStack() as held:
        paths = []
        for checkpoint in list_checkpoints(run.checkpoints):
            try:
                held.enter_context(hold_checkpoint(checkpoint))
            except FileNotFoundError:  # superseded just now
                continue
            paths.append(checkpoint.path)
        yield paths


def _add_if_there(path: Path, writer: SnapshotWriter) -> None:
    try:
        writer.add_file(path)
    except FileNotFoundError:  # a request to pause that has been withdrawn, for example
        logger.info("%s has gone while it was copied", path)


def _measure(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        try:
            sizes += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return sizes
