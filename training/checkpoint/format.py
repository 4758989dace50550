"""Sharded checkpoints on disk, which count only once they are complete.

A checkpoint is a folder `checkpoint_<step>`, in which every worker writes its own files
(`training.checkpoint.writer`) and last its manifest (size and SHA-256 of each file). The checkpoint
is complete once the manifests of all its workers exist. (Ray Train's own snapshot is replaced in
place, so a kill can leave it inconsistent.) A complete checkpoint whose files differ from its
manifests is damaged: it is skipped, but never treated as if it had not existed.

A file may exist without being visible, because a network file system lags behind. So
`last_complete.json` records the step of the last completed checkpoint, 0 before the first, and a
run starts at step 0 only if no checkpoint has been complete. Checkpoints that the run will write
again are quarantined, and removed once the next checkpoint is complete. Entries with other names
belong to other programs and are ignored. A checkpoint whose manifest has a newer major version
stops the run: nothing that a newer release saved is removed or replaced by something older.
"""

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from storage import durable, versioned_json
from storage.durable import DamagedFileError
from storage.layout import new_id
from storage.locks import lock_shared
from storage.manifest import parse_listed_files
from storage.regular_file import read_regular
from storage.tombstones import remove_tombstones, rename_to_tombstone
from storage.versioned_json import NewerFormatError
from training.run.progress import Progress

logger = logging.getLogger(__name__)

TAG = "state"
LATEST_NAMES = ("latest", "latest_universal")
"""Files that name the folder of shards in a checkpoint; the second is of DeepSpeed's converter."""
_NAME = re.compile(r"checkpoint_([0-9]{10,})")
LAST_COMPLETE_NAME = "last_complete.json"
_QUARANTINE_PREFIX = ".quarantined-"
HOW_TO_RESTART = (
    "To train from step 0 instead, remove 'ray/checkpoints' and 'metrics.jsonl' from the run's "
    "folder"
)


class CheckpointError(RuntimeError):
    """A checkpoint cannot be resumed from; the message names it and the reason."""


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


@dataclass(frozen=True)
class CheckpointSurvey:
    """The checkpoints of a run that are visible."""

    complete: list[Checkpoint]
    """Newest first."""
    damaged: list[str]
    """Names of the checkpoints with a manifest that cannot be read."""
    incomplete: dict[str, int]
    """Names of the checkpoints that lack a manifest, with the number of manifests they have."""
    newer: list[str]
    """Descriptions of the checkpoints that only a newer release can read, with the reasons."""


def find_shards(checkpoint: Path) -> Path:
    """Return the folder of shards that a checkpoint's `latest` file names.

    Raises `CheckpointError` if this is no DeepSpeed checkpoint.
    """
    files = (checkpoint / name for name in LATEST_NAMES)
    latest = next((file for file in files if file.is_file()), None)
    if latest is None:
        raise CheckpointError(f"{checkpoint.name!r} is no checkpoint: it has no file 'latest'")
    shards = checkpoint / latest.read_text().strip()
    if not shards.is_dir():
        raise CheckpointError(
            f"{checkpoint.name!r} names the shards {shards.name!r}: they are gone"
        )
    return shards


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """List the complete checkpoints under `folder`, newest first; others are left out."""
    return survey_checkpoints(folder).complete


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read one checkpoint's manifests; None if some are missing.

    Raises `CheckpointError` for a manifest that cannot be read.
    """
    try:
        return _read_checkpoint(path)
    except FileNotFoundError:
        return None
    except DamagedFileError as exc:
        raise CheckpointError(_describe_unreadable(path, exc)) from exc


def find_damage(checkpoint: Checkpoint, rank: int, world_size: int) -> str | None:
    """Hash this worker's share of a checkpoint's files; returns the first difference, or None."""
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


def lock_checkpoint(checkpoint: Checkpoint) -> IO[bytes]:
    """Lock a checkpoint against removal as superseded until the returned file is closed.

    Raises `FileNotFoundError` if it has already been removed.
    """
    return lock_shared(name_manifest(checkpoint.path, 0))


def record_complete(folder: Path, step: int) -> None:
    """Record the step of the last completed checkpoint, 0 if none has been complete.

    Raises `OSError` if the record cannot be written.
    """
    if read_last_complete(folder) != step:
        folder.mkdir(parents=True, exist_ok=True)
        durable.write_json(folder / LAST_COMPLETE_NAME, {"step": step})


def read_last_complete(folder: Path) -> int | None:
    """Return the step that `record_complete` recorded; None if the record is missing or damaged."""
    try:
        return int(durable.read_json(folder / LAST_COMPLETE_NAME)["step"])
    except FileNotFoundError:  # an earlier release, no training yet, or not visible
        return None
    except (ValueError, KeyError, TypeError):
        logger.exception("%s is damaged and is ignored", LAST_COMPLETE_NAME)
        return None


def has_had_checkpoints(folder: Path) -> bool:
    """Return whether a checkpoint in `folder` has been complete, even if it is damaged now."""
    survey = survey_checkpoints(folder)
    return bool(survey.complete or survey.damaged or survey.newer or read_last_complete(folder))


def explain_missing(folder: Path, survey: CheckpointSurvey, last_step: int) -> str | None:
    """Explain why a run without a complete checkpoint must not start at step 0; None if it may.

    A run may start at step 0 if none of its checkpoints has ever been complete. `last_step` is the
    last step in its metrics. Without a record, steps and manifests are evidence of a complete
    checkpoint. Manifests of two checkpoints are always evidence, because the second checkpoint is
    begun after the first is complete.
    """
    recorded = read_last_complete(folder)
    begun = [name for name, num_manifests in survey.incomplete.items() if num_manifests]
    if recorded:
        reason = f"the checkpoint of step {recorded} was complete"
    elif len(begun) > 1 or (recorded is None and begun):
        reason = f"{', '.join(begun)} may have been complete"
    elif recorded is None and last_step > 0:
        reason = f"the run has trained {last_step} steps"
    else:
        return None
    found = ", ".join(
        f"{name} with {num_manifests} of its manifests"
        for name, num_manifests in survey.incomplete.items()
    )
    return (
        f"no complete checkpoint is found, although {reason}; found {found or 'no checkpoint'}. "
        "Nothing was removed. If files are only invisible for the moment, resume the run later; if "
        f"they are lost, restore them from a backup. {HOW_TO_RESTART}"
    )


def quarantine_newer(folder: Path, start: Checkpoint | None) -> None:
    """Quarantine, by renaming, the checkpoints of steps that a run repeats after `start`.

    Each may be intact although one of its files is invisible or seems damaged, so none is removed
    yet; see `remove_quarantined`. Raises `OSError` if a checkpoint cannot be renamed.
    """
    for step, path in _list_folders(folder):
        if start is None or step > start.step:
            aside = path.with_name(new_id(f"{_QUARANTINE_PREFIX}{path.name}"))
            os.rename(path, aside)
            durable.fsync_directory(folder)
            logger.warning("%s is not resumed from and is kept as %s", path.name, aside.name)


def remove_quarantined(folder: Path) -> None:
    """Remove quarantined checkpoints; called once the resumed run has completed a checkpoint."""
    for path in folder.glob(f"{_QUARANTINE_PREFIX}*"):
        rename_to_tombstone(path)
    remove_tombstones(folder)


def survey_checkpoints(folder: Path) -> CheckpointSurvey:
    """Read the manifests of all checkpoints; raises `OSError` if they cannot be listed or read."""
    survey = CheckpointSurvey([], [], {}, [])
    for _, path in reversed(_list_folders(folder)):
        try:
            survey.complete.append(_read_checkpoint(path))
        except FileNotFoundError:
            survey.incomplete[path.name] = len(list(path.glob("manifest-*.json")))
        except NewerFormatError as exc:
            survey.newer.append(_describe_unreadable(path, exc))
            logger.warning("a checkpoint is skipped: %s", survey.newer[-1])
        except DamagedFileError:
            logger.exception("%s has a damaged manifest and is skipped", path.name)
            survey.damaged.append(path.name)
    survey.complete.sort(key=lambda checkpoint: checkpoint.step, reverse=True)
    return survey


def _list_folders(folder: Path) -> list[tuple[int, Path]]:
    """List the folders of checkpoints by the steps in their names; other entries are left out."""
    try:
        with os.scandir(folder) as entries:
            return sorted(
                (int(name[1]), Path(entry.path))
                for entry in entries
                if (name := _NAME.fullmatch(entry.name)) and entry.is_dir()
            )
    except FileNotFoundError:
        return []


def describe_newer(survey: CheckpointSurvey) -> str:
    """Describe the checkpoints that only a newer release can read, and what to do."""
    return (
        f"{'; '.join(survey.newer)}; nothing was removed. Start the newer release again to "
        "continue the run"
    )


def list_unusable_newest(survey: CheckpointSurvey) -> list[str]:
    """List the damaged and incomplete checkpoints of later steps than the newest complete one."""
    newest = survey.complete[0].path.name if survey.complete else ""
    names = [*survey.damaged, *survey.incomplete]
    return sorted(name for name in names if _read_step(name) > _read_step(newest))


def _read_step(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else -1


def _describe_unreadable(path: Path, exc: DamagedFileError) -> str:
    if isinstance(exc, NewerFormatError):
        return f"{path.name!r} needs a newer version of Tuneserve: {exc.reason}"
    return f"{path.name!r} has a damaged manifest: {exc.reason}"


def _read_checkpoint(path: Path) -> Checkpoint:
    """Read the manifests of all workers.

    Raises `FileNotFoundError` if a manifest is missing, `NewerFormatError` for a newer major
    version, and `DamagedFileError` for an invalid manifest.
    """
    first = _read_manifest(name_manifest(path, 0))
    try:
        world_size, progress = int(first["world_size"]), first["progress"]
        checkpoint = Checkpoint(path, world_size, Progress.model_validate(progress))
    except (ValueError, KeyError, TypeError) as exc:
        reason = f"it has no valid progress ({type(exc).__name__})"
        raise versioned_json.explain_invalid(name_manifest(path, 0), first, reason) from exc
    for rank in range(1, world_size):
        _read_manifest(name_manifest(path, rank))
    return checkpoint


def _read_manifest(path: Path) -> dict[str, Any]:
    # Not `read_object`, which treats an I/O error as damage: an older checkpoint would be used.
    return versioned_json.parse_object(path, read_regular(path))


def name_checkpoint(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return folder / f"checkpoint_{step:010d}"


def name_manifest(path: Path, rank: int) -> Path:
    """Return the path of a worker's manifest, the file that it writes last."""
    return path / f"manifest-{rank:05d}.json"
