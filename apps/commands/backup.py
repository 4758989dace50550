"""`tuneserve backup` and `tuneserve restore`: copies of the storage root with verified hashes."""

from pathlib import Path
from typing import Annotated

import typer

from apps.commands.output import console, fail
from apps.deploy_file import find_storage
from storage.backup import BackupError, Snapshot, check_restorable, open_snapshot, restore_snapshot
from storage.layout import StorageLayout
from storage.privacy import keep_files_private
from training.byte_progress import show_bytes

Storage = Annotated[
    Path | None,
    typer.Option(help="The storage root; by default the one that the deploy file names."),
]
Deploy = Annotated[Path, typer.Option(help="Settings of the application.")]


def backup(
    folder: Annotated[Path, typer.Argument(help="Where snapshots are kept; made if need be.")],
    storage: Storage = None,
    deploy: Deploy = Path("deploy.yaml"),
) -> None:
    """Copy the storage root into a new snapshot; the application may be running.

    Files that the previous snapshot in FOLDER has unchanged are hard links to it.
    """
    from apps.backup import back_up  # imports what computes

    keep_files_private()
    layout = StorageLayout((storage or find_storage(deploy)).expanduser().resolve())
    if not layout.models.is_dir():
        fail(f"{str(layout.root)!r} is no storage root: it has no folder 'models'")
    try:
        with show_bytes(console, "Backing up") as on_bytes:
            snapshot = back_up(layout, folder, on_bytes)
    except (BackupError, OSError) as exc:
        fail(f"the backup failed: {exc}")
    reused = f", {snapshot.num_reused} unchanged since the last" if snapshot.num_reused else ""
    console.print(f"{_describe(snapshot)}{reused}", markup=False, highlight=False)


def restore(
    folder: Annotated[Path, typer.Argument(help="A snapshot, or a folder with the newest in it.")],
    storage: Storage = None,
    deploy: Deploy = Path("deploy.yaml"),
) -> None:
    """Restore a snapshot to a new storage root, and verify every file.

    The root must not exist or be empty, and no application may be running on it.
    """
    keep_files_private()
    root = (storage or find_storage(deploy)).expanduser().resolve()
    try:
        check_restorable(root)
        snapshot = open_snapshot(folder.resolve())
        with show_bytes(console, "Restoring") as on_bytes:
            restore_snapshot(snapshot, root, on_bytes)
    except (BackupError, OSError) as exc:
        fail(f"the restore failed: {exc}")
    console.print(f"{_describe(snapshot)} restored to {root}", markup=False, highlight=False)


def _describe(snapshot: Snapshot) -> str:
    num_files = len(snapshot.manifest.files)
    return f"{snapshot.path}: {num_files} files, {snapshot.size_bytes / 1e6:.1f} MB"
