"""`tuneserve backup` and `tuneserve restore`: copies of the storage root with verified hashes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from apps.cli.output import console, escape_controls, fail, notes, print_message
from apps.server.deploy_file import DeployFileError, find_storage
from storage.layout import KEYS_NAME, StorageLayout
from storage.privacy import keep_files_private
from storage.snapshots.backup import check_restorable, restore_snapshot
from storage.snapshots.snapshot import BackupError, Snapshot, open_snapshot
from system.byte_progress import show_bytes

INCOMPLETE_STATUS = 3
"""Exit status of a backup that lacks unreadable entries."""
Storage = Annotated[
    Path | None,
    typer.Option(help="The storage root; by default the one that the deploy file names."),
]
Deploy = Annotated[Path, typer.Option(help="Settings of the application.")]


def backup(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the snapshots; created if it does not exist.")
    ],
    storage: Storage = None,
    deploy: Deploy = Path("deploy.yaml"),
) -> None:
    """Copy the storage root into a new snapshot; the application may be running.

    Files that are unchanged since the previous snapshot in FOLDER become hard links to it. The exit
    status is 3 if the snapshot lacks entries that cannot be read.
    """
    from apps.backup import back_up  # imports training code

    keep_files_private()
    layout = StorageLayout(_find_root(storage, deploy))
    if not layout.models.is_dir():
        fail(f"{str(layout.root)!r} is not a storage root: it has no folder 'models'")
    try:
        with show_bytes(console, "Backing up") as on_bytes:
            snapshot = back_up(layout, folder, on_bytes)
    except (BackupError, OSError) as exc:
        fail(f"the backup failed: {exc}")
    reused = (
        f", {snapshot.num_reused} unchanged since the last snapshot" if snapshot.num_reused else ""
    )
    print_message(f"{_describe(snapshot)}{reused}")
    num_deleted = len(snapshot.manifest.left_out) - len(snapshot.unreadable)
    if num_deleted:
        print_message(f"entries omitted because they were deleted meanwhile: {num_deleted}")
    _warn_of_unreadable(snapshot)
    if snapshot.unreadable:
        raise typer.Exit(INCOMPLETE_STATUS)


def restore(
    folder: Annotated[
        Path, typer.Argument(help="A snapshot, or a folder of snapshots: its newest one.")
    ],
    storage: Storage = None,
    deploy: Deploy = Path("deploy.yaml"),
) -> None:
    """Restore a snapshot to a new storage root, and verify every file.

    The root must be empty or not exist, and no application may be running on it.
    """
    keep_files_private()
    root = _find_root(storage, deploy)
    try:
        check_restorable(root)
        snapshot = open_snapshot(folder.resolve())
        with show_bytes(console, "Restoring") as on_bytes:
            restore_snapshot(snapshot, root, on_bytes)
    except (BackupError, OSError) as exc:
        fail(f"the restore failed: {exc}")
    print_message(f"{_describe(snapshot)} restored to {root}")
    _warn_of_unreadable(snapshot)
    if KEYS_NAME in snapshot.manifest.files:
        notes.print(
            f"API keys are as they were at {_show_utc(snapshot)}: keys that were revoked or "
            "rotated since then are valid again, and newer keys are not; list them with "
            f"'tuneserve keys list --storage {root}' and revoke those that must not be valid",
            soft_wrap=True,
        )


def _find_root(storage: Path | None, deploy: Path) -> Path:
    """Return the storage root of a command; exit with an error for an invalid deploy file."""
    try:
        return (storage or find_storage(deploy)).expanduser().resolve()
    except DeployFileError as exc:
        fail(exc)


def _warn_of_unreadable(snapshot: Snapshot) -> None:
    """Print a warning for each entry that a snapshot lacks because it could not be read."""
    for entry in snapshot.unreadable:
        text = f"warning: the snapshot does not contain {entry.path}: {entry.detail}"
        notes.print(escape_controls(text), soft_wrap=True)


def _show_utc(snapshot: Snapshot) -> str:
    return f"{datetime.fromtimestamp(snapshot.manifest.created_at, UTC):%Y-%m-%d %H:%M} UTC"


def _describe(snapshot: Snapshot) -> str:
    num_files = len(snapshot.manifest.files)
    return f"{snapshot.path}: {num_files} files, {snapshot.size_bytes / 1e6:.1f} MB"
