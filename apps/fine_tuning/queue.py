"""The fine-tuning queue: what clients call, composed of the parts that manage runs.

All its state is on disk in the records of the runs, so it can be restarted at any time. It writes
the record of a queued run. When it starts the run, the run's Ray job becomes the writer; the queue
becomes the writer again only when that job is known to have ended. A run whose Ray job was lost is
queued again, at its old position, and resumes from its last checkpoint.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from apps.errors import refuse_full_disk
from apps.evaluations.evaluation_queue import EvaluationQueue
from apps.evaluations.model_answers import AnswerSource
from apps.fine_tuning.cluster.job_runner import JobRunner
from apps.fine_tuning.extension.extension_request import parse_extension
from apps.fine_tuning.extension.run_extender import RunExtender
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.index.run_lookup import expect_run, find_run
from apps.fine_tuning.job_requests import parse_fine_tune
from apps.fine_tuning.job_responses import JobObject, describe_job
from apps.fine_tuning.lost_runs import LostRuns
from apps.fine_tuning.planning.job_estimate import EstimateObject
from apps.fine_tuning.publication_tasks import CheckpointExporter, PublishingModel
from apps.fine_tuning.reconciler import Reconciler
from apps.fine_tuning.rows.file_rows import FileRows
from apps.fine_tuning.run_changes import RunChanges
from apps.fine_tuning.run_processes import RunProcesses
from apps.fine_tuning.scheduler import RunScheduler
from apps.fine_tuning.storage_claim import StorageClaim
from apps.fine_tuning.submission import JobCreator, PreviewObject
from apps.fine_tuning.validation.row_thread import RowThread
from apps.fine_tuning.validation.validation_tasks import ValidationScheduler
from apps.settings import UsageLimits
from storage.layout import StorageLayout
from storage.tombstones import remove_tombstones
from system.fault_log import FaultLog
from system.threads import DedicatedThread
from training.run.folder import RunFolder

logger = logging.getLogger(__name__)


class RunQueue:
    """Starts runs by priority, then in order of creation, at most `max_concurrent_runs` at once.

    A run whose process is lost is restarted, at most `max_restarts` times without a completed step
    in between. `answers` are the generators, which evaluations ask.
    """

    def __init__(
        self,
        layout: StorageLayout,
        runner: JobRunner,
        *,
        max_concurrent_runs: int = 1,
        max_restarts: int = 3,
        reserved_cpus: float = 0.0,
        reserved_gpus: float = 0.0,
        limits: UsageLimits | None = None,
        allowed_loops: Sequence[str] = (),
        answers: AnswerSource | None = None,
    ) -> None:
        self.layout = layout
        self._runner = runner
        limits = limits or UsageLimits()
        runs = RunIndex(layout)
        sizes = ModelSizes(layout)
        # Serialises decisions about runs: between reading a record and acting on it, nothing else
        # may end or start the run.
        lock = threading.Lock()
        processes = RunProcesses(runner)
        lost_runs = LostRuns(layout, processes, max_restarts)
        self._rows = RowThread()
        self.file_rows = FileRows(layout, runner, self._rows)
        self._validation = ValidationScheduler(layout, runner, self._rows)
        self._creator = JobCreator(
            layout,
            runs,
            sizes,
            limits,
            reserved_cpus,
            reserved_gpus,
            allowed_loops,
        )
        self._extender = RunExtender(layout, lock, self._creator)
        self._exporter = CheckpointExporter(layout, runs, runner, sizes, limits)
        self._changes = RunChanges(layout, lock, runs, processes, lost_runs, limits)
        scheduler = RunScheduler(
            layout,
            runner,
            lock,
            max_concurrent_runs=max_concurrent_runs,
            reserved_cpus=reserved_cpus,
            reserved_gpus=reserved_gpus,
            allowed_loops=allowed_loops,
        )
        self._reconciler = Reconciler(
            layout, lock, runs, processes, lost_runs, scheduler, self._validation
        )
        self._faults = FaultLog(logger)
        take_over = partial(_take_over, layout, self._faults, self._reconciler)
        self._claim = StorageClaim(layout, take_over)
        self.evaluations = EvaluationQueue(layout, self._rows, answers, self._claim.check)
        self._passes = DedicatedThread(
            "reconcile"
        )  # never waits for a thread that a request occupies
        self._num_computing: int | None = None  # None until a pass has counted them

    def close(self) -> None:
        """Release the storage, so that another queue can take it over."""
        self._exporter.close()
        self.evaluations.close()
        self._rows.close()
        self._claim.close()

    async def create(self, body: Mapping[str, Any]) -> JobObject:
        """Validate and queue a fine-tuning job; return it as the API shows it.

        Raises `ServingError` or `ApiError` for a job that cannot work.
        """
        request = parse_fine_tune(body)
        nodes = self._runner.list_nodes()
        return describe_job(await self._rows.run(self._creator.create, request, nodes))

    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> PreviewObject:
        """Show how the first rows of a file become tokens for a model."""
        return await self._rows.run(self._creator.preview, file_id, model, num_rows, training)

    async def estimate(self, body: Mapping[str, Any]) -> EstimateObject:
        """Validate the body of `create`, and estimate what its job will take; raises the same."""
        request = parse_fine_tune(body)
        nodes = self._runner.list_nodes()
        return await self._rows.run(self._creator.estimate, request, nodes)

    async def cancel(self, run_id: str) -> JobObject:
        """Cancel a queued, paused or running run now; return the job as the API shows it.

        The cancellation completes even if its caller no longer waits. Raises `ApiError` 404 for an
        unknown run, 409 for one that has ended.
        """
        return await self._change(self._changes.cancel, run_id)

    async def pause(self, run_id: str) -> JobObject:
        """Pause a run; a running one first finishes its step and saves a checkpoint.

        A paused run uses no resources. Returns the job as the API shows it, which may still be
        running for a moment. Raises `ApiError` 404 for an unknown run, 409 for one that has ended.
        """
        return await self._change(self._changes.pause, run_id)

    async def resume(self, run_id: str) -> JobObject:
        """Put a paused, failed or cancelled run back into the queue, at its old position.

        The run resumes from its last checkpoint. Returns the job as the API shows it. Raises
        `ApiError` 404 for an unknown run, 409 for one that has succeeded, is queued or running, or
        whose rows were never read.
        """
        return await self._change(self._changes.resume, run_id)

    async def extend(self, run_id: str, body: Mapping[str, Any]) -> JobObject:
        """Create a job that continues a succeeded one; return it as the API shows it.

        Raises as `RunExtender.extend` does.
        """
        request = parse_extension(body)
        nodes = self._runner.list_nodes()
        await asyncio.to_thread(self._claim.check)
        return describe_job(await self._rows.run(self._extender.extend, run_id, request, nodes))

    async def delete(self, run_id: str) -> None:
        """Delete a run that has ended, including its checkpoints; models stay.

        Raises `ApiError` 404 for an unknown run, 409 for one that has not ended.
        """
        run = find_run(self.layout, run_id)
        await asyncio.to_thread(self._claim.check)
        with expect_run(run_id):
            await asyncio.shield(asyncio.to_thread(self._changes.delete, run))

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> PublishingModel:
        """Start publishing a checkpoint of a run as a model; see `CheckpointExporter.begin`."""
        await asyncio.to_thread(self._claim.check)
        return await asyncio.to_thread(self._exporter.begin, run_id, checkpoint_id, model_id)

    async def reconcile(self) -> None:
        """Reconcile the records with the Ray jobs: end or requeue lost runs, start queued ones.

        Also starts the next evaluation, without waiting for that: runs must not wait for it.
        """
        if await self._passes.run(self._reconcile):
            self.evaluations.begin_next()

    async def drain(self) -> bool:
        """Start no more runs, and make those that compute save a checkpoint and pause.

        Evaluations stop, and continue after the next start of the application. The next queue that
        takes over the storage ends the pauses of runs. Returns whether no run computes any more;
        call this again until it returns True.
        """
        self._reconciler.is_draining = True
        self._num_computing = None  # a pass that fails has counted nothing
        await self.evaluations.stop()
        await self.reconcile()
        return self._num_computing == 0

    async def _change(self, change: Callable[[RunFolder], None], run_id: str) -> JobObject:
        run = find_run(self.layout, run_id)
        await asyncio.to_thread(self._claim.check)
        with expect_run(run_id), refuse_full_disk():
            await asyncio.shield(asyncio.to_thread(change, run))
            return describe_job(run)

    def _reconcile(self) -> bool:
        """Make one pass; return whether this queue may start evaluations."""
        if not self._claim.acquire():
            return False
        with self._faults.guard("the queued runs"):
            self._num_computing = self._reconciler.reconcile()
        if self._reconciler.is_draining:
            self._validation.withdraw_attempts()
            return False
        with self._faults.guard("the exports of checkpoints"):
            self._exporter.reconcile()
        with self._faults.guard("the checks of files"):
            self._validation.reconcile_files()
        return True


def _take_over(layout: StorageLayout, faults: FaultLog, reconciler: Reconciler) -> None:
    """Complete what the previous queue of the storage began: deletions, and its shutdown."""
    for folder in (layout.runs, layout.files, layout.evaluations.folder):
        with faults.guard(f"deleted entries of {folder.name}/"):
            remove_tombstones(folder)
    if not reconciler.is_draining:
        reconciler.end_shutdown_pauses()
