"""Saving of checkpoints by all workers, and their agreement on the checkpoint to resume from.

Each worker copies its files in the background while training continues, its manifest last.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from storage import durable, versioned_json
from storage.locks import LockedError, lock_existing
from storage.scratch import ScratchFolder
from storage.tombstones import remove_tombstones, rename_to_tombstone
from training.checkpoint.format import (
    HOW_TO_RESTART,
    TAG,
    Checkpoint,
    CheckpointError,
    describe_newer,
    explain_missing,
    find_damage,
    list_checkpoints,
    name_checkpoint,
    name_manifest,
    read_checkpoint,
    record_complete,
    remove_quarantined,
    survey_checkpoints,
)
from training.checkpoint.reference_logits import PROBE_NAME, Probe
from training.checkpoint.selection import choose_superseded
from training.engine import sum_over_workers
from training.place import Place
from training.run.progress import Progress

logger = logging.getLogger(__name__)

_COPY_CHUNK_BYTES = 4 << 20


class CheckpointWriter:
    """Saves the engine's shards, with one upload at a time in the background of the training.

    Every worker has a writer, and all workers call its methods together.
    """

    def __init__(self, folder: Path, place: Place, num_kept: int) -> None:
        self._folder = folder
        self._place = place
        self._num_kept = num_kept
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._upload: Future[None] | None = None
        self._saved_step = 0
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, engine: Any, progress: Progress, probe: Probe | None = None) -> None:
        """Save a checkpoint: shards to local disk now, from there to storage in the background.

        `probe` has the engine's logits with exactly these weights. Waits for the previous upload;
        raises `OSError` if it failed.
        """
        self.finish()
        target = name_checkpoint(self._folder, progress.step)
        # Creating it also removes the folders that killed workers have left there.
        staging = ScratchFolder(Path(tempfile.gettempdir()), "tuneserve-shards-")
        try:
            engine.save_checkpoint(str(staging.path), tag=TAG)
            if probe is not None and self._place.rank == 0:
                probe.write(staging.path / PROBE_NAME)
        except BaseException:
            staging.remove()
            raise
        manifest: dict[str, Any] = {"rank": self._place.rank, "world_size": self._place.world_size}
        if self._place.rank == 0:
            manifest["progress"] = progress.model_dump()
        self._saved_step = progress.step
        self._upload = self._thread.submit(_upload, staging, target, manifest)

    def finish(self) -> None:
        """Wait until the last checkpoint is complete, and remove what it supersedes.

        Raises `OSError` if the upload failed on any worker; the incomplete checkpoint is removed.
        """
        if self._upload is None:
            return
        error = self._upload.exception()
        self._upload = None
        failures = _gather_failures(error, self._place)
        if self._place.rank == 0:
            if failures:
                self._remove_unfinished()
            else:
                self._remove_superseded()
        if failures:
            raise OSError(f"a checkpoint could not be written: {'; '.join(failures)}") from error

    def _remove_superseded(self) -> None:
        """Record that the checkpoint just saved is complete, and remove what it supersedes.

        Quarantined checkpoints stay as long as the new checkpoint is not visible.
        """
        record_complete(self._folder, self._saved_step)
        complete = list_checkpoints(self._folder)
        for old in choose_superseded(complete, num_kept=self._num_kept):
            _discard_unless_locked(old.path)
        remove_tombstones(self._folder)
        if any(found.step == self._saved_step for found in complete):
            remove_quarantined(self._folder)

    def _remove_unfinished(self) -> None:
        """Remove the files of a failed upload: the disk may be full, and they would never be read.

        They stay if all manifests exist, because then only a step after the manifests failed.
        """
        target = name_checkpoint(self._folder, self._saved_step)
        try:
            if target.is_dir() and read_checkpoint(target) is None:
                rename_to_tombstone(target)
                remove_tombstones(self._folder)
        except (OSError, CheckpointError):
            # The failure of the upload is raised anyway, and may have the same cause.
            logger.exception("the unfinished %s cannot be removed", target.name)


def agree_on_checkpoint(
    folder: Path,
    place: Place,
    last_step: int = 0,
    on_damage: Callable[[str, str], None] | None = None,
) -> Checkpoint | None:
    """Find the newest intact checkpoint, hashing every file; the same on all workers.

    A damaged checkpoint is skipped in favour of the previous one: `on_damage` is called on every
    worker with the name of each damaged checkpoint newer than the result, and the damage.
    `last_step` is the last step in the run's metrics, which only rank 0 needs to know. Raises
    `CheckpointError` on all workers if every checkpoint is damaged, if a newer release saved one,
    or if none is complete although one has been.
    """
    found: list[Any] = [None]
    if place.rank == 0:
        survey = survey_checkpoints(folder)
        found = [(survey, None if survey.complete else explain_missing(folder, survey, last_step))]
    dist.broadcast_object_list(found, src=0, device=place.device)
    survey, refusal = found[0]
    if survey.newer:
        raise CheckpointError(describe_newer(survey))
    skipped = dict.fromkeys(survey.damaged, "its manifest cannot be read")
    for checkpoint in survey.complete:
        damage = find_damage(checkpoint, place.rank, place.world_size)
        if sum_over_workers(damage is not None, place) == 0:
            _report_damage(skipped, checkpoint, on_damage)
            return checkpoint  # type: ignore[no-any-return]
        found_by_worker: list[Any] = [None] * place.world_size
        dist.all_gather_object(found_by_worker, damage)
        skipped[checkpoint.path.name] = "; ".join(filter(None, found_by_worker))
    if num_damaged := len(survey.complete) + len(survey.damaged):
        raise CheckpointError(
            f"all {num_damaged} checkpoints are damaged; nothing was removed. Restore one from a "
            f"backup. {HOW_TO_RESTART}"
        )
    if refusal is not None:
        raise CheckpointError(refusal)
    return None


def _report_damage(
    skipped: Mapping[str, str], start: Checkpoint, on_damage: Callable[[str, str], None] | None
) -> None:
    """Report the damaged checkpoints that are newer than `start`, newest first."""
    for name, damage in sorted(skipped.items(), reverse=True):
        if name > start.path.name:
            logger.warning("%s is damaged and is skipped: %s", name, damage)
            if on_damage:
                on_damage(name, damage)


def _upload(staging: ScratchFolder, target: Path, manifest: Mapping[str, Any]) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)  # below stage 1 a rank may have no files
        files: dict[str, dict[str, Any]] = {}
        for source in sorted(path for path in staging.path.rglob("*") if path.is_file()):
            name = source.relative_to(staging.path)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            files[str(name)] = _copy(source, target / name)
        for folder in {(target / name).parent for name in files}:
            durable.fsync_directory(folder)
        path = name_manifest(target, manifest["rank"])
        versioned_json.write_object(path, {**manifest, "files": files})
        durable.fsync_directory(target.parent)
        if complete := read_checkpoint(target):  # ours was the last manifest
            record_complete(target.parent, complete.step)
    finally:
        staging.remove()


def _gather_failures(error: BaseException | None, place: Place) -> list[str]:
    """Collect on every worker which workers failed, and how."""
    if sum_over_workers(error is not None, place) == 0:
        return []
    reasons: list[Any] = [None] * place.world_size
    dist.all_gather_object(reasons, error and f"{type(error).__name__}: {error}")
    return [f"worker {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]


def _copy(source: Path, target: Path) -> dict[str, Any]:
    """Copy a file durably and hash it; returns its entry for the manifest."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_COPY_CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
        return {"size_bytes": writer.tell(), "sha256": digest.hexdigest()}


def _discard_unless_locked(path: Path) -> None:
    """Rename a checkpoint to a tombstone; skip one that is being read or is not visible."""
    with suppress(LockedError, FileNotFoundError), lock_existing(name_manifest(path, 0)):
        rename_to_tombstone(path)
