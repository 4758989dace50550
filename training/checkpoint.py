"""Sharded checkpoints on disk: complete or not there.

A checkpoint is a folder `checkpoint_<step>` that every worker fills with its own files
(`training.checkpoint_writer`), its manifest (size and SHA-256 of each file) last. It exists when
the manifests of all its workers do: Ray Train's own snapshot is replaced in place, and a kill can
tear it. One that exists and whose files differ from its manifests is damaged: it is passed over,
never taken for one that was not there. One whose manifest has a newer major version stops the run:
nothing that a newer release saved is removed, or replaced by something older.
"""

import logging
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from storage import durable, versioned
from storage.durable import DamagedFileError
from storage.locks import hold_shared
from storage.manifest import parse_listed_files
from storage.versioned import NewerFormatError
from training.progress import Progress

logger = logging.getLogger(__name__)

TAG = "state"
PREFIX = "checkpoint_"


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
        return self.progress.measured_loss


class CheckpointSurvey(NamedTuple):
    """What lies in a folder of checkpoints."""

    complete: list[Checkpoint]
    """Newest first."""
    num_unreadable: int
    newer: list[str]
    """Those that only a newer release can read, each as what is to be told of it."""


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
    return survey_checkpoints(folder).complete


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read one checkpoint's manifests; None if it has not all of them.

    Raises `CheckpointError` for one that cannot be read.
    """
    try:
        return _read_checkpoint(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as exc:
        raise CheckpointError(_describe_unreadable(path, exc)) from exc


def find_damage(checkpoint: Checkpoint, rank: int, world_size: int) -> str | None:
    """Hash this worker's share of a checkpoint's files; returns what differs, or None."""
    for writer in range(rank, checkpoint.world_size, world_size):
        path = name_manifest(checkpoint.path, writer)
        try:
            files = parse_listed_files(path, _read_manifest(path))
        except DamagedFileError as exc:
            return f"{path.name}: {exc.reason}"
        for name, expected in files.items():
            try:
                found = durable.hash_file(checkpoint.path / name)
            except FileNotFoundError:
                return f"{name} is gone"
            if found != expected.sha256:
                return f"{name} differs from what was written"
    return None


def hold_checkpoint(checkpoint: Checkpoint) -> IO[bytes]:
    """Keep a checkpoint from being superseded until the returned file is closed.

    Raises `FileNotFoundError` if that has happened already.
    """
    return hold_shared(name_manifest(checkpoint.path, 0))


def remove_leftovers(folder: Path, newest: Checkpoint | None) -> None:
    """Remove what is newer than the checkpoint a run goes on from, and what is incomplete.

    Raises `CheckpointError`, and removes nothing, if a newer release saved one of them.
    """
    survey = survey_checkpoints(folder)
    if survey.newer:
        raise CheckpointError(describe_newer(survey))
    complete = {checkpoint.path for checkpoint in survey.complete}
    for path in folder.glob(f"{PREFIX}*"):
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


def survey_checkpoints(folder: Path) -> CheckpointSurvey:
    """Read the manifests of all checkpoints; what cannot be read is logged."""
    survey = CheckpointSurvey([], 0, [])
    for path in folder.glob(f"{PREFIX}*"):
        try:
            survey.complete.append(_read_checkpoint(path))
        except FileNotFoundError:  # not complete
            continue
        except NewerFormatError as exc:
            survey.newer.append(_describe_unreadable(path, exc))
            logger.warning("a checkpoint is skipped: %s", survey.newer[-1])
        except DamagedFileError:
            logger.exception("%s has a damaged manifest and is passed over", path.name)
            survey = survey._replace(num_unreadable=survey.num_unreadable + 1)
    survey.complete.sort(key=lambda checkpoint: checkpoint.step, reverse=True)
    return survey


def describe_newer(survey: CheckpointSurvey) -> str:
    """Say which checkpoints only a newer release can read, and what to do."""
    return (
        f"{'; '.join(survey.newer)}; nothing was removed. Start the newer release again to "
        "continue the run"
    )


def _describe_unreadable(path: Path, exc: DamagedFileError) -> str:
    if isinstance(exc, NewerFormatError):
        return f"{path.name!r} needs a newer version of Tuneserve: {exc.reason}"
    return f"{path.name!r} has a damaged manifest: {exc.reason}"


def _read_checkpoint(path: Path) -> Checkpoint:
    """Read the manifests of all workers.

    Raises `FileNotFoundError` if one has none yet, `NewerFormatError` for a newer major version,
    and `DamagedFileError` for a manifest that is not one.
    """
    first = _read_manifest(name_manifest(path, 0))
    try:
        world_size, progress = int(first["world_size"]), first["progress"]
        checkpoint = Checkpoint(path, world_size, Progress.model_validate(progress))
    except (ValueError, KeyError, TypeError) as exc:
        reason = f"it has no valid progress ({type(exc).__name__})"
        raise versioned.explain_invalid(name_manifest(path, 0), first, reason) from exc
    for rank in range(1, world_size):
        _read_manifest(name_manifest(path, rank))
    return checkpoint


def _read_manifest(path: Path) -> dict[str, Any]:
    # Not `read_object`: a fault of the disk is no damage, after which an older one is taken.
    return versioned.parse_object(path, path.read_bytes())


def name_manifest(path: Path, rank: int) -> Path:
    """The file that a worker writes last."""
    return path / f"manifest-{rank:05d}.json"
