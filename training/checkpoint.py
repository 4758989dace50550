"""Sharded checkpoints: saved by every worker, complete or not there, and taken up again.

A checkpoint is a folder `checkpoint_<step>` that every worker fills with its own files. Each copies
them there in the background while training goes on, and writes its manifest (size and SHA-256 of
each file) last. A checkpoint exists when the manifests of all its workers do: Ray Train's own
snapshot is replaced in place, and a kill can tear it. One that exists and whose files differ from
its manifests is damaged: it is passed over, never taken for one that was not there.
"""

import hashlib
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import torch.distributed as dist

from storage import durable
from storage.locks import HeldError, hold_alone, hold_shared
from storage.scratch import ScratchFolder
from training.engine import Place, sum_over_workers
from training.probe import PROBE_NAME, Probe
from training.progress import Progress

logger = logging.getLogger(__name__)

TAG = "state"
_PREFIX = "checkpoint_"
_COPY_CHUNK_BYTES = 4 << 20


class CheckpointError(RuntimeError):
    """A checkpoint cannot be taken up; the message says which and why."""


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    path: Path
    world_size: int
    progress: Progress

    @property
    def step(self) -> int:
        """Optimizer steps taken before it was saved."""
        return self.progress.step

    @property
    def eval_loss(self) -> float | None:
        """Validation loss of these very weights, if they were evaluated."""
        progress = self.progress
        return progress.eval_loss if progress.evaluated_step == progress.step else None


def find_shards(checkpoint: Path) -> Path:
    """Return the folder of shards that a checkpoint's `latest` file names.

    Raises `CheckpointError` if this is no DeepSpeed checkpoint.
    """
    latest = checkpoint / "latest"
    if not latest.is_file() and (checkpoint / "latest_universal").is_file():
        latest = checkpoint / "latest_universal"  # as DeepSpeed's converter calls it
    if not latest.is_file():
        raise CheckpointError(f"{checkpoint.name!r} is no checkpoint: it has no file 'latest'")
    shards = checkpoint / latest.read_text().strip()
    if not shards.is_dir():
        raise CheckpointError(
            f"{checkpoint.name!r} names the shards {shards.name!r}: they are gone"
        )
    return shards


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """List the complete checkpoints under `folder`, newest first; others are not there."""
    return _survey(folder)[0]


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read one checkpoint's manifests; None if it has not all of them."""
    try:
        return _read_checkpoint(path)
    except FileNotFoundError:
        return None


def find_damage(checkpoint: Checkpoint, rank: int, world_size: int) -> str | None:
    """Hash this worker's share of a checkpoint's files; returns what differs, or None."""
    for writer in range(rank, checkpoint.world_size, world_size):
        for name, entry in _read_manifest(checkpoint.path, writer)["files"].items():
            try:
                found = durable.hash_file(checkpoint.path / name)
            except FileNotFoundError:
                return f"{name} is gone"
            if found != entry["sha256"]:
                return f"{name} differs from what was written"
    return None


def hold_checkpoint(checkpoint: Checkpoint) -> IO[bytes]:
    """Keep a checkpoint from being superseded until the returned file is closed.

    Raises `FileNotFoundError` if that has happened already.
    """
    return hold_shared(_name_manifest(checkpoint.path, 0))


def remove_leftovers(folder: Path, newest: Checkpoint | None) -> None:
    """Remove what is newer than the checkpoint a run goes on from, and what is incomplete."""
    complete = {checkpoint.path for checkpoint in list_checkpoints(folder)}
    for path in folder.glob(f"{_PREFIX}*"):
        if path not in complete or newest is None or path.name > newest.path.name:
            shutil.rmtree(path)


def choose_superseded(checkpoints: list[Checkpoint], *, num_kept: int) -> list[Checkpoint]:
    """Choose what may go: all but the `num_kept` newest, and the best that the newest knows of."""
    newest_first = sorted(checkpoints, key=lambda checkpoint: checkpoint.step, reverse=True)
    best_step = newest_first[0].progress.best_step if newest_first else None
    return [old for old in newest_first[num_kept:] if old.step != best_step]


def choose_result(checkpoints: list[Checkpoint], keep: Literal["last", "best"]) -> Checkpoint:
    """Choose the checkpoint that becomes the model: of those on disk, the newest or the best.

    The best of all evaluations is among them unless 'keep' was changed while the run was under
    way. Raises `CheckpointError` if there is none.
    """
    if not checkpoints:
        raise CheckpointError("no complete checkpoint is on disk")
    if keep == "best":
        evaluated = [
            (found.eval_loss, -found.step, found)
            for found in checkpoints
            if found.eval_loss is not None and math.isfinite(found.eval_loss)
        ]
        if evaluated:
            return min(evaluated)[-1]  # the steps differ, so checkpoints are never compared
    return max(checkpoints, key=lambda found: found.step)


class CheckpointWriter:
    """Saves the engine's shards; one upload at a time goes on behind the training.

    Every worker has one, and all call its methods together.
    """

    def __init__(self, folder: Path, place: Place, num_kept: int) -> None:
        self._folder = folder
        self._place = place
        self._num_kept = num_kept
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._upload: Future[None] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, engine: Any, progress: Progress, probe: Probe | None = None) -> None:
        """Save a checkpoint: shards to local disk now, from there to storage in the background.

        `probe` is what the engine answers with these very weights. Waits for the upload before.
        Raises `OSError` if that one failed.
        """
        self.finish()
        target = self._folder / f"{_PREFIX}{progress.step:010d}"
        # What a worker that was killed has left there goes with it.
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
        self._upload = self._thread.submit(_upload, staging, target, manifest)

    def finish(self) -> None:
        """Wait until the last checkpoint is complete, and let go of superseded ones.

        Raises `OSError` if the upload failed, on any worker.
        """
        if self._upload is None:
            return
        error = self._upload.exception()
        self._upload = None
        if failures := _gather_failures(error, self._place):
            raise OSError(f"a checkpoint could not be written: {'; '.join(failures)}") from error
        if self._place.rank == 0:
            complete = list_checkpoints(self._folder)
            for old in choose_superseded(complete, num_kept=self._num_kept):
                _remove(old.path)


def agree_on_checkpoint(folder: Path, place: Place) -> Checkpoint | None:
    """Find the newest checkpoint that is whole, hashing every file; the same on all workers.

    A damaged one is passed over with a warning, for the one before it. Raises `CheckpointError`,
    on all workers, if there are some and every one is damaged.
    """
    survey: list[Any] = [_survey(folder) if place.rank == 0 else None]
    dist.broadcast_object_list(survey, src=0, device=place.device)
    complete, num_unreadable = survey[0]
    for checkpoint in complete:
        damage = find_damage(checkpoint, place.rank, place.world_size)
        if damage is not None:
            logger.warning("checkpoint of step %d is damaged: %s", checkpoint.step, damage)
        if sum_over_workers(damage is not None, place) == 0:
            return checkpoint  # type: ignore[no-any-return]
    if num_damaged := len(complete) + num_unreadable:
        raise CheckpointError(
            f"all {num_damaged} checkpoints are damaged; nothing was removed. Restore one, or "
            "remove them to begin anew"
        )
    return None


def _upload(staging: ScratchFolder, target: Path, manifest: Mapping[str, Any]) -> None:
    try:
        target.mkdir(parents=True, exist_ok=True)  # below stage 1 a rank may have no file at all
        files: dict[str, dict[str, Any]] = {}
        for source in sorted(path for path in staging.path.rglob("*") if path.is_file()):
            name = source.relative_to(staging.path)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            files[str(name)] = _copy(source, target / name)
        for folder in {(target / name).parent for name in files}:
            durable.fsync_directory(folder)
        durable.write_json(_name_manifest(target, manifest["rank"]), {**manifest, "files": files})
        durable.fsync_directory(target.parent)
    finally:
        staging.remove()


def _gather_failures(error: BaseException | None, place: Place) -> list[str]:
    """Say on every worker which of them failed, and how."""
    if sum_over_workers(error is not None, place) == 0:
        return []
    reasons: list[Any] = [None] * place.world_size
    dist.all_gather_object(reasons, error and f"{type(error).__name__}: {error}")
    return [f"worker {rank}: {reason}" for rank, reason in enumerate(reasons) if reason]


def _copy(source: Path, target: Path) -> dict[str, Any]:
    """Copy a file to stay, hashing it on the way; returns its line in the manifest."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(_COPY_CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
        return {"size_bytes": writer.tell(), "sha256": digest.hexdigest()}


def _remove(path: Path) -> None:
    """Remove a checkpoint; its first manifest goes first, so that half of it is none.

    One that is being read stays, and goes after the next checkpoint.
    """
    with suppress(HeldError):
        with hold_alone(_name_manifest(path, 0)):
            _name_manifest(path, 0).unlink()
        shutil.rmtree(path)


def _survey(folder: Path) -> tuple[list[Checkpoint], int]:
    """List the complete checkpoints, newest first, and count those that cannot be read."""
    complete, num_unreadable = [], 0
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            complete.append(_read_checkpoint(path))
        except FileNotFoundError:  # not complete
            continue
        except (ValueError, KeyError, TypeError):
            logger.exception("%s has a damaged manifest and is passed over", path.name)
            num_unreadable += 1
    return sorted(complete, key=lambda checkpoint: checkpoint.step, reverse=True), num_unreadable


def _read_checkpoint(path: Path) -> Checkpoint:
    """Read the manifests of all workers; raises `FileNotFoundError` if one has none yet."""
    first = _read_manifest(path, 0)
    for rank in range(1, first["world_size"]):
        _read_manifest(path, rank)
    return Checkpoint(path, first["world_size"], Progress.model_validate(first["progress"]))


def _read_manifest(path: Path, rank: int) -> dict[str, Any]:
    manifest: dict[str, Any] = durable.read_json(_name_manifest(path, rank))
    return manifest


def _name_manifest(path: Path, rank: int) -> Path:
    return path / f"manifest-{rank:05d}.json"
