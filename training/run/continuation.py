"""The state of a succeeded run, copied into the folder of a new run that continues it.

Shards and tables of rows never change once they are written, so they become hard links if the file
system has them: the copy of a large checkpoint then takes neither time nor space, and each of the
two folders can be removed without an effect on the other one. Files that are appended to, replaced
or locked are copied, and so are the checkpoints of a loop of the user's own, which might change
them.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from storage import durable
from system.free_resources import measure_free_disk
from training.run.folder import RunBusyError, RunFolder

if TYPE_CHECKING:
    from training.checkpoint.format import Checkpoint

_SUMMARY_NAME = "summary.json"
_LOCK_TIMEOUT_S = 1.0
_MANIFEST_PREFIX = "manifest-"
_FIGURES_NAME = "tensorboard"
COPY_LOCK = "copy"
"""The role whose lock a process holds while it copies the state of a run."""

CopyFile = Callable[[Path, Path], None]


class MissingStateError(ValueError):
    """A run no longer has the state from which another one can continue."""


def copy_state(source: RunFolder, target: RunFolder, check: Callable[[], None]) -> int:
    """Copy what a run needs to continue `source`; return the step from which it continues.

    These are all complete checkpoints, the metrics and evaluations, TensorBoard's figures, and the
    rows as tokens. The summary of the rows is copied last: the target has all once it has that. If
    the copy fails, what was copied is removed; what a killed process has copied before is removed
    and copied again. `check` is called before each file, and may raise.

    Raises `MissingStateError` if the source has no rows or no complete checkpoint, or not the
    one from which the target continues, `RunBusyError` if another process copies, and `OSError` if
    the disk has no room.
    """
    with _lock_copy(target, _LOCK_TIMEOUT_S):
        checkpoints = _find_checkpoints(source, target)
        step = checkpoints[0].step
        if target.has_data:  # copied by a process that was believed to be lost
            return step
        _remove_copied(target)
        try:
            _copy_all(source, target, checkpoints, check)
        except BaseException:
            if not target.has_data:
                _remove_copied(target)
            raise
        return step


def discard_copy(target: RunFolder) -> None:
    """Remove what was copied for a run that has ended without all of it.

    A process that is still copying removes it itself.
    """
    if not any(path.exists() for path in _list_copied(target)):
        return
    with suppress(RunBusyError), _lock_copy(target, 0.0):
        if not target.has_data:
            _remove_copied(target)


@contextmanager
def _lock_copy(target: RunFolder, timeout_s: float) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(target.lock(COPY_LOCK, timeout_s))
        except RunBusyError as exc:
            raise RunBusyError(
                f"another process copies checkpoints to run {target.path.name!r}; wait for its end"
            ) from exc
        yield


def _find_checkpoints(source: RunFolder, target: RunFolder) -> "list[Checkpoint]":
    """Return the checkpoints to copy, newest first; raises `MissingStateError`."""
    from training.checkpoint.format import describe_newer, survey_checkpoints  # slow to import

    found = survey_checkpoints(source.checkpoints)
    if found.newer:
        raise MissingStateError(f"checkpoint {describe_newer(found)}")
    advice = "so it cannot be extended; start a new run from its model"
    if not found.complete or not source.has_data:
        missing = "checkpoints" if source.has_data else "rows"
        raise MissingStateError(f"the {missing} of run {source.path.name!r} are gone, {advice}")
    ends = target.read_record().extends
    if ends and ends[-1].step != found.complete[0].step:
        raise MissingStateError(
            f"the newest complete checkpoint of run {source.path.name!r} is that of step "
            f"{found.complete[0].step}, expected that of step {ends[-1].step}, {advice}"
        )
    return found.complete


def _list_copied(target: RunFolder) -> list[Path]:
    return [target.ray, target.data, target.path / _FIGURES_NAME]


def _remove_copied(target: RunFolder) -> None:
    for copied in _list_copied(target):
        shutil.rmtree(copied, ignore_errors=True)


def _copy_all(
    source: RunFolder,
    target: RunFolder,
    checkpoints: "Sequence[Checkpoint]",
    check: Callable[[], None],
) -> None:
    from training.checkpoint.format import record_complete  # slow to import

    folders = [checkpoint.path for checkpoint in checkpoints]
    copy_checkpoint_file = _choose_copy(source, target, folders)

    def copy_file(before: Path, after: Path, copy: CopyFile = durable.copy_file) -> None:
        check()
        copy(before, after)

    def copy_large(before: Path, after: Path) -> None:
        is_locked = before.name.startswith(_MANIFEST_PREFIX)
        copy_file(before, after, durable.copy_file if is_locked else copy_checkpoint_file)

    for folder in folders:
        copied = target.checkpoints / folder.name
        _copy_folder(folder, copied, copy_large)
        times = folder.stat()  # a checkpoint was created when its folder last changed
        os.utime(copied, ns=(times.st_atime_ns, times.st_mtime_ns))
    record_complete(target.checkpoints, checkpoints[0].step)
    durable.fsync_directory(target.ray)
    figures = source.path / _FIGURES_NAME
    if figures.is_dir():
        _copy_folder(figures, target.path / _FIGURES_NAME, copy_file)
    for before, after in (
        (source.metrics.path, target.metrics.path),
        (source.evaluations.path, target.evaluations.path),
    ):
        if before.is_file():
            copy_file(before, after)
    _copy_folder(source.data, target.data, copy_large, without=_SUMMARY_NAME)
    durable.fsync_directory(target.path)
    durable.write_json(target.data / _SUMMARY_NAME, source.read_data_summary())


def _choose_copy(source: RunFolder, target: RunFolder, checkpoints: Sequence[Path]) -> CopyFile:
    """Return how large files are copied; raise `OSError` if there is no room for their copies."""
    if source.read_spec().loop is None and _can_link(source, target):
        return durable.link_or_copy
    files = [file for folder in (source.data, *checkpoints) for file in _list_files(folder)]
    needed = sum(file.stat().st_size for file in files)
    if (free := measure_free_disk(target.path)) < needed:
        reason = f"{os.strerror(errno.ENOSPC)}: {needed:,} bytes are needed, {free:,} are free"
        raise OSError(errno.ENOSPC, reason)
    return durable.copy_file


def _can_link(source: RunFolder, target: RunFolder) -> bool:
    probe = target.path / ".link-probe"
    probe.unlink(missing_ok=True)
    try:
        os.link(source.data / _SUMMARY_NAME, probe)
    except OSError:  # another file system, or one without hard links
        return False
    probe.unlink()
    return True


def _copy_folder(source: Path, target: Path, copy: CopyFile, without: str = "") -> None:
    """Copy a folder; manifests last, since a checkpoint is complete once it has them."""
    target.mkdir(parents=True)
    for file in _list_files(source):
        name = file.relative_to(source)
        if str(name) != without:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            copy(file, target / name)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        durable.fsync_directory(folder)


def _list_files(folder: Path) -> list[Path]:
    """List the files of a folder, manifests last; hidden files are temporary, and left out."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name[0] != ".")
    return sorted(found, key=lambda file: (file.name.startswith(_MANIFEST_PREFIX), file))
