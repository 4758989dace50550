"""The training loop that every Ray Train worker runs.

All workers follow the same plan in lockstep. Everything that a step needs besides weights and
optimizer state is a function of its number, so an interrupted run resumes as if it had not been
interrupted.
"""

import gc
import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from storage.privacy import keep_files_private
from system.priority import lower_process_priority, move_to_low_priority_session
from training.batching import BatchPlan, EpochPlan, Step, count_steps, plan_epoch
from training.checkpoint.format import Checkpoint, CheckpointError
from training.checkpoint.reference_logits import compute_probe
from training.checkpoint.restore import find_start, load_checkpoint
from training.checkpoint.writer import CheckpointWriter
from training.data.faults import ChangedRowsError
from training.data.row_table import RowTable
from training.data.run_rows import open_rows
from training.deepspeed.optimizer import learning_rate_at
from training.engine import (
    NonFiniteLossError,
    StepResult,
    count_parameters,
    sum_over_workers,
    take_step,
)
from training.evaluation import evaluate
from training.model import WeightsError, choose_layout
from training.monitoring.journal import Journal
from training.monitoring.trackers import open_trackers
from training.monitoring.watchdog import Watchdog, report_stall
from training.own_loop.function import LoopError
from training.own_loop.worker import run_loop
from training.place import Place
from training.preflight.flattening_check import find_leak
from training.references import add_references
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.run.run_log import log_to_file
from training.spec import TrainingSpec
from training.strategy import TrainingEngine, find_strategy
from training.task import Objective, find_task

logger = logging.getLogger(__name__)

Ending = Literal["finished", "stopped_early", "paused"]

_HANDOVER_S = 120.0
# Errors that new workers would meet again, and that all workers raise together: if only one worker
# returned, the others would wait for it.
_NOT_RETRYABLE = (
    NonFiniteLossError,
    WeightsError,
    CheckpointError,
    ChangedRowsError,
    LoopError,
)


def run_worker(config: dict[str, Any]) -> dict[str, str]:
    """Train; Ray Train calls this in each worker with the spec and the path of the run's folder.

    Returns `{"ending": …}`, or `{"error": …, "code": …}` for an error that new workers could not
    avoid. Raises every other exception. If a retry may help (`training.cluster.retry`), Ray Train
    then replaces the workers, which resume from the last checkpoint.
    """
    spec = TrainingSpec.model_validate(config["spec"])
    keep_files_private()
    run = RunFolder(Path(config["run"]))
    torch.set_num_threads(spec.threads_per_worker)
    lower_process_priority()
    move_to_low_priority_session()
    place = _find_place()
    # Workers of a killed driver run for another moment: wait until they no longer write.
    alone = run.lock("writer", _HANDOVER_S) if place.rank == 0 else nullcontext()
    with log_to_file(run.log_file), alone:
        try:
            if spec.loop is not None:
                return {"ending": run_loop(spec, run, place)}
            return {"ending": _train(spec, run, place)}
        except _NOT_RETRYABLE as exc:
            logger.exception("worker failed")
            return {"error": str(exc), "code": type(exc).__name__}
        except Exception:
            logger.exception("worker failed")
            raise


def _find_place() -> Place:
    import ray.train.torch

    context = ray.train.get_context()
    return Place(context.get_world_rank(), context.get_world_size(), ray.train.torch.get_device())


def _train(spec: TrainingSpec, run: RunFolder, place: Place) -> Ending:
    find_strategy(spec.strategy).prepare_process(place.device)
    if place.device.type == "cpu":
        from training.kernels.row_attention import use_attention_by_row

        use_attention_by_row()
    start = find_start(run, place)
    progress = _find_position(spec, run, place, start)
    objective = find_task(spec.task).open_objective(spec, run.read_data_summary())
    rows = open_rows(spec, run.data, "training", objective.layout, place)
    assert rows is not None
    plan = BatchPlan.from_spec(spec, progress.layout, progress.num_shares)
    num_steps = count_steps(rows.lengths, plan, spec.epochs, spec.max_steps)
    with open_trackers(spec, run, progress.step, is_reporting=place.rank == 0) as trackers:
        has_perplexity = objective.task.learns_tokens
        journal = Journal(run, place, trackers, num_steps, has_perplexity=has_perplexity)
        journal.log_event(
            f"{place.world_size} workers are up on {place.device.type}; loading the model"
        )
        engine = _start_engine(spec, run, place, plan, objective, start)
        if start is None and plan.layout != "padded" and _has_leak(engine, place, journal):
            plan = replace(plan, layout="padded")
            engine.destroy()
            del engine
            gc.collect()  # attention is chosen at loading, so load again, as a resumed run does
            engine = _start_engine(spec, run, place, plan, objective, start)
            progress = Progress(num_shares=plan.num_shares, layout=plan.layout)
            num_steps = count_steps(rows.lengths, plan, spec.epochs, spec.max_steps)
            journal.expect_steps(num_steps)
        _log_size(engine, spec, journal)
        if start:
            journal.log_event(f"Resuming after step {start.step} of {num_steps}", step=start.step)
        else:
            within = "in" if num_steps != spec.max_steps else "within"
            journal.log_event(f"Training for {num_steps} steps {within} {spec.epochs} epochs")
        validation = open_rows(spec, run.data, "validation", objective.layout, place)
        if objective.needs_references:
            add = partial(add_references, engine, place, objective, plan, run, journal)
            rows = add(rows, "training", has_started=start is not None)
            if validation is not None:
                validation = add(validation, "validation", has_started=start is not None)
        worker = _Worker(spec, run, place, engine, plan, objective, rows, validation, journal)
        _freeze_existing_objects()
        return worker.walk(progress, num_steps)


def _log_size(engine: TrainingEngine, spec: TrainingSpec, journal: Journal) -> None:
    num_parameters, num_learned = count_parameters(engine)
    learned = f", {num_learned:,} of them in the adapter" if spec.adapter else ""
    journal.log_event(
        f"Loaded {num_parameters:,} parameters{learned}", num_parameters=num_parameters
    )


def _has_leak(engine: Any, place: Place, journal: Journal) -> bool:
    """Return whether rows of a flattened batch influence each other; all workers call this."""
    leak = find_leak(engine, engine.module.config, place.device)
    if not sum_over_workers(leak is not None, place):
        return False
    reason = leak or "another worker found that rows influence each other"
    journal.log_event(f"Rows are padded, not flattened: in this model {reason}", level="warn")
    return True


def _freeze_existing_objects() -> None:
    """Exempt all existing objects from garbage collection: modules, the model, Ray's objects.

    Autograd creates enough objects in a step to trigger a collection, which would scan all objects.
    """
    gc.collect()
    gc.freeze()


def _find_position(
    spec: TrainingSpec, run: RunFolder, place: Place, start: Checkpoint | None
) -> Progress:
    if start is None:
        layout = choose_layout(spec, place.device)
        return Progress(num_shares=spec.num_replicas, layout=layout)
    is_extended = any(end.step == start.step for end in run.read_record().extends)
    return start.progress.reset_patience() if is_extended else start.progress


def _start_engine(
    spec: TrainingSpec,
    run: RunFolder,
    place: Place,
    plan: BatchPlan,
    objective: Objective,
    start: Checkpoint | None,
) -> TrainingEngine:
    engine = find_strategy(spec.strategy).start_engine(spec, place, plan, objective, start)
    if start is not None:
        load_checkpoint(engine, start, place, run.ray / "universal")
    return engine


class _Worker:
    """One worker's loop over the steps."""

    def __init__(
        self,
        spec: TrainingSpec,
        run: RunFolder,
        place: Place,
        engine: TrainingEngine,
        plan: BatchPlan,
        objective: Objective,
        rows: RowTable,
        validation: RowTable | None,
        journal: Journal,
    ) -> None:
        self._spec = spec
        self._run = run
        self._place = place
        self._engine = engine
        self._plan = plan
        self._objective = objective
        self._rows = rows
        self._journal = journal
        self._validation = validation
        self._writer = CheckpointWriter(run.checkpoints, place, spec.keep_checkpoints)
        self._watchdog = Watchdog(partial(report_stall, run, place.rank))

    def walk(self, progress: Progress, num_steps: int) -> Ending:
        """Take all steps after `progress`; returns how it ended, once checkpoints are complete."""
        with self._watchdog.watch():
            return self._walk(progress, num_steps)

    def _walk(self, progress: Progress, num_steps: int) -> Ending:
        steps, progress = self._enter_epoch(progress)
        self._rows.begin(progress.epoch, steps.locate(progress.step_in_epoch), self._plan)
        ending = self._stop_early(progress)
        marked = time.monotonic()
        while progress.step < num_steps and ending is None:
            if progress.step_in_epoch == len(steps):
                steps, progress = self._enter_epoch(progress.begin_epoch())
            result = self._take_step(steps[progress.step_in_epoch], progress, num_steps)
            now = time.monotonic()
            progress = progress.take_step(result, elapsed_s=now - marked)
            marked = now
            ends_epoch = progress.step_in_epoch == len(steps)
            ends_part = ends_epoch or progress.step == num_steps
            if ends_part or _is_due(progress.step, self._spec.evaluate_every_steps):
                progress = self._evaluate(progress)
            self._journal.record_step(result, progress, len(steps))
            if ends_epoch:
                self._log_epoch(progress)
            if progress.step < num_steps:
                ending = self._choose_ending(progress, result)
            if ends_part or ending or self._is_worth_saving(progress):
                probe = compute_probe(self._engine, self._place, self._objective)
                self._writer.save(self._engine, progress, probe)
        self._writer.finish()
        return ending or "finished"

    def _enter_epoch(self, progress: Progress) -> tuple[EpochPlan, Progress]:
        """Plan the epoch of `progress`; raises `CheckpointError` if its order changed midway."""
        steps = plan_epoch(self._rows.lengths, self._plan, progress.epoch)
        fingerprint = steps.compute_fingerprint()
        if progress.step_in_epoch and progress.plan != fingerprint:
            raise CheckpointError(
                f"the rows are in another order than when the checkpoint of step {progress.step} "
                "was saved, so some would be seen twice and others never: their data or the "
                "settings of the batches have changed; start a new run"
            )
        return steps, progress.follow_plan(fingerprint)

    def _take_step(self, step: Step, progress: Progress, num_steps: int) -> StepResult:
        self._watchdog.begin_step(progress.step + 1)
        result = take_step(
            self._engine,
            self._place,
            self._objective,
            self._rows,
            step,
            self._plan.layout,
            learning_rate_at(progress.step, num_steps, self._spec),
            seed=f"{self._spec.seed}/{progress.step}",
            stop=self._place.rank == 0 and self._run.is_pause_requested,
        )
        self._watchdog.end_step()
        return result

    def _evaluate(self, progress: Progress) -> Progress:
        if self._validation is None:
            return progress
        found = evaluate(self._engine, self._place, self._objective, self._validation, self._plan)
        self._journal.record_evaluation(progress.step, found)
        return progress.evaluate(found.loss, found.metrics, self._spec.criterion)

    def _choose_ending(self, progress: Progress, result: StepResult) -> Ending | None:
        if ending := self._stop_early(progress):
            return ending
        if result.was_asked_to_stop:
            step = progress.step
            self._journal.log_event(f"Pausing after step {step}", code="pausing", step=step)
            return "paused"
        return None

    def _stop_early(self, progress: Progress) -> Ending | None:
        patience = self._spec.early_stopping_patience
        if patience is None or progress.num_worse < patience:
            return None
        best = "of which none was finite"
        if progress.best_value is not None:
            best = f"none better than the {progress.best_value:.4f} of step {progress.best_step}"
        self._journal.log_event(f"Stopping early after {progress.num_worse} evaluations, {best}")
        return "stopped_early"

    def _is_worth_saving(self, progress: Progress) -> bool:
        is_best = self._spec.keep == "best" and progress.best_step == progress.step
        return is_best or _is_due(progress.step, self._spec.save_every_steps)

    def _log_epoch(self, progress: Progress) -> None:
        epoch, loss = progress.epoch + 1, progress.epoch_loss
        self._journal.log_event(
            f"Epoch {epoch} of {self._spec.epochs}: training loss {loss:.4f}",
            epoch=epoch,
            step=progress.step,
            loss=loss,
        )


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
