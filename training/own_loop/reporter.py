"""What a loop reports: metrics become lines of the run, checkpoints become the run's own.

All workers call `report` together, so it is a point at which all may stop: a run that is to pause
ends there, once a checkpoint is complete.
"""

import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from training.checkpoint.format import Checkpoint, name_checkpoint
from training.checkpoint.writer import CheckpointWriter
from training.evaluation import Evaluation
from training.monitoring.journal import Journal
from training.own_loop.function import LoopError
from training.place import Place
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.spec import TrainingSpec

MAX_METRICS = 100
MAX_EVENT_CHARACTERS = 2_000
_MAX_NAME_CHARACTERS = 100
_MAX_STEP = 10**15
# Metrics that are no result of an evaluation.
_POSITION = frozenset({"step", "num_steps", "epoch", "loss", "learning_rate"})


class LoopPausedError(BaseException):
    """Ends a loop that is to pause; no `Exception`, so that the loop does not handle it."""


class _Share(NamedTuple):
    """What one worker contributes to a report."""

    files: list[str] | None
    step: int
    is_stopping: bool
    fault: str | None
    """Why a checkpoint with these metrics cannot be saved."""


class Reporter:
    """Receives the reports of a loop on one worker; all workers call `report` together."""

    def __init__(
        self,
        run: RunFolder,
        spec: TrainingSpec,
        place: Place,
        journal: Journal,
        start: Checkpoint | None,
    ) -> None:
        self._run = run
        self._spec = spec
        self._place = place
        self._journal = journal
        self._progress = start.progress if start else Progress(num_shares=place.world_size)
        self._newest = start.path if start else None
        self._writer = CheckpointWriter(run.checkpoints, place, spec.keep_checkpoints)
        self._begun_at = time.monotonic()
        self._first_step = self._progress.step
        self._earlier_s = self._progress.elapsed_s
        self._left_out: set[str] = set()
        self._has_announced_pause = False

    def get_checkpoint(self) -> Any:
        """Return the newest checkpoint as Ray Train's `Checkpoint`; None if there is none."""
        import ray.train

        return None if self._newest is None else ray.train.Checkpoint.from_directory(self._newest)

    def report(self, metrics: Mapping[str, Any], checkpoint: Any = None, *, is_moved: bool) -> None:
        """Record metrics, and save a checkpoint if any worker has one.

        The files of all workers become one checkpoint; of files with the same name, that of the
        lowest rank. `is_moved` removes the reported folders. Raises `LoopPausedError` on all
        workers if the run is to pause and a checkpoint was saved, and `LoopError` if metrics lack
        the one by which the best checkpoint is chosen.
        """
        figures = self._choose_figures(metrics)
        if checkpoint is None:
            self._report(figures, None)
            return
        with checkpoint.as_directory() as folder:
            try:
                self._report(figures, Path(folder))
            finally:
                if is_moved:
                    shutil.rmtree(folder, ignore_errors=True)

    def should_stop(self) -> bool:
        """Return on all workers whether a pause of the run was requested."""
        answer = [self._is_stopping()]
        _check_group()
        dist.broadcast_object_list(answer, src=0, device=self._place.device)
        return answer[0]

    def log_event(self, message: str) -> None:
        """Add an event; too long a message is shortened."""
        self._journal.log_event(str(message)[:MAX_EVENT_CHARACTERS])

    def _report(self, figures: dict[str, float], folder: Path | None) -> None:
        files = None if folder is None else _list_files(folder)
        shares = self._gather(
            _Share(
                files,
                self._choose_step(figures),
                self._is_stopping(),
                self._find_missing_metric(figures),
            )
        )
        has_checkpoint = any(share.files is not None for share in shares)
        if has_checkpoint and shares[0].fault:
            raise LoopError(shares[0].fault)
        step, is_stopping = shares[0].step, shares[0].is_stopping
        self._progress = self._advance(step, figures, is_evaluated=has_checkpoint)
        if has_checkpoint:
            own = _choose_files([share.files or [] for share in shares], self._place.rank)
            self._writer.save(_ReportedFiles(folder, own), self._progress)
            self._writer.finish()
            self._newest = name_checkpoint(self._run.checkpoints, step)
        self._record(step, figures, has_checkpoint=has_checkpoint)
        if not is_stopping:
            return
        if has_checkpoint:
            raise LoopPausedError
        if not self._has_announced_pause:
            self._has_announced_pause = True
            self._journal.log_event("Pausing with the next checkpoint that the loop reports")

    def _gather(self, share: _Share) -> Sequence[_Share]:
        _check_group()
        shares: list[Any] = [None] * self._place.world_size
        dist.all_gather_object(shares, tuple(share))
        return [_Share(*one) for one in shares]

    def _is_stopping(self) -> bool:
        return self._place.rank == 0 and self._run.is_pause_requested

    def _choose_step(self, figures: Mapping[str, float]) -> int:
        """Return the reported step if it is above the last one, else the number of the report."""
        reported = figures.get("step", 0.0)
        is_valid = reported.is_integer() and self._progress.step < reported <= _MAX_STEP
        return int(reported) if is_valid else self._progress.step + 1

    def _choose_figures(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that are finite numbers; an event names the others once."""
        figures: dict[str, float] = {}
        for name, value in metrics.items():
            number = math.nan
            with suppress(TypeError, ValueError, RuntimeError):  # of a tensor with several values
                number = float(value)
            is_kept = len(figures) < MAX_METRICS and len(str(name)) <= _MAX_NAME_CHARACTERS
            if is_kept and math.isfinite(number) and not isinstance(value, str):
                figures[str(name)] = number
            elif (shown := str(name)[:_MAX_NAME_CHARACTERS]) not in self._left_out:
                self._left_out.add(shown)
                self._journal.log_event(
                    f"The metric {shown!r} is {str(value)[:80]!r}, and is left out: expected a "
                    f"finite number, and at most {MAX_METRICS} metrics",
                    level="warn",
                )
        return figures

    def _advance(self, step: int, figures: Mapping[str, float], *, is_evaluated: bool) -> Progress:
        """Return the progress after a report; only one with a checkpoint can be the best."""
        loss = figures.get("loss")
        progress = self._progress.model_copy(
            update={
                "step": step,
                "epoch": int(max(0.0, figures.get("epoch", 0.0))),
                "epoch_loss_sum": loss or 0.0,
                "epoch_num_learned": 0 if loss is None else 1,
                "elapsed_s": self._earlier_s + time.monotonic() - self._begun_at,
            }
        )
        if not is_evaluated:
            return progress
        measured = self._measure(figures)
        eval_loss = measured.pop("loss", None)
        progress = progress.evaluate(
            math.nan if eval_loss is None else eval_loss, measured, self._spec.criterion
        )
        return progress.model_copy(update={"eval_loss": eval_loss})

    def _measure(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the results of an evaluation among metrics, without the prefix 'eval_'.

        The loss of training is one only if it is what checkpoints are compared by.
        """
        measured = {
            name.removeprefix("eval_"): value
            for name, value in figures.items()
            if name not in _POSITION
        }
        is_compared = self._spec.keep == "best" and self._spec.criterion.metric == "loss"
        if is_compared and "loss" in figures:
            measured.setdefault("loss", figures["loss"])
        return measured

    def _find_missing_metric(self, figures: Mapping[str, float]) -> str | None:
        if self._spec.keep == "last" or self._spec.criterion.metric in self._measure(figures):
            return None
        return (
            f"keep is 'best' by {self._spec.best_metric!r}, which the loop did not report with its "
            f"checkpoint: found {', '.join(map(repr, figures)) or 'no metric'}"
        )

    def _record(self, step: int, figures: Mapping[str, float], *, has_checkpoint: bool) -> None:
        line = {**figures, "step": step, "elapsed_s": round(self._progress.elapsed_s, 3)}
        if (num_steps := figures.get("num_steps", 0.0)) >= step:
            took_s = self._progress.elapsed_s - self._earlier_s
            rate_s = took_s / (step - self._first_step)
            line["remaining_s"] = round(rate_s * (num_steps - step), 3)
        else:
            line.pop("num_steps", None)
        self._journal.record_line(line)
        if has_checkpoint:
            if measured := self._measure(figures):
                found = Evaluation(measured.pop("loss", math.nan), measured)
                self._journal.add_evaluation(step, found)
            shown = {name: value for name, value in figures.items() if name != "step"}
            listed = "".join(f", {name} {value:.4g}" for name, value in shown.items())
            self._journal.log_event(
                f"Step {step}: the loop reported a checkpoint{listed}",
                figures={**figures, "step": step},
            )


class _ReportedFiles:
    """The files of this worker's checkpoint, which a `CheckpointWriter` saves."""

    def __init__(self, folder: Path | None, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = names

    def save_checkpoint(self, save_dir: str, tag: str) -> None:  # noqa: ARG002 - the writer's
        """Copy the files, as hard links if the file system allows it."""
        for name in self._names:
            assert self._folder is not None, "a worker without a folder has no files"
            target = Path(save_dir) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self._folder / name, target)
            except OSError:
                shutil.copyfile(self._folder / name, target)


def _list_files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def _choose_files(files: Sequence[Sequence[str]], rank: int) -> list[str]:
    """Choose the files that a worker saves: those that no worker of a lower rank has."""
    saved = {name for lower in files[:rank] for name in lower}
    return [name for name in files[rank] if name not in saved]


def _check_group() -> None:
    if not dist.is_initialized():
        raise LoopError(
            "ray.train.report was called without a process group of torch.distributed, which the "
            "loop has destroyed: report before"
        )
