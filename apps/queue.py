"""The queue of fine-tunes: checks what is asked for, starts runs in order, ends them.

Everything it knows is on disk in the runs' records, so it may be restarted at any time. It writes
the record of a run that waits; it hands the record over to the run's own Ray Job when it starts it,
and takes it back only when that job is known to have ended.
"""

import asyncio
import fcntl
import logging
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, Literal, Protocol

from apps.bundled import DEMONSTRATION_MODEL, read_demonstration_settings
from apps.errors import ApiError
from apps.exports import ExportDesk, ExportRunner
from apps.files import FileStore
from apps.jobs import SERVER_SETTINGS, FineTuneRequest, describe_job
from apps.runs import find_run, has_published, list_runs, name_model
from serving.model_store import LATEST_ALIAS, ModelStore, StoredModel
from storage.layout import StorageLayout, new_id
from training import launch
from training.data.faults import DataError
from training.data.prepare import link_data, prepare_data
from training.data.preview import preview_rows, split_tokens
from training.resources import check_resources
from training.runs import RunError, RunFolder, RunRecord, RunStatus
from training.spec import TrainingSpec

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 10.0
# Counts over a whole file are part of its preview where counting takes a few seconds at most.
_MAX_BYTES_COUNTED = 4 << 20
_COUNTS = ("num_rows", "num_tokens", "num_learned_tokens", "num_truncated_rows", "num_dropped_rows")

JobState = Literal["active", "ended", "unknown"]


class JobRunner(ExportRunner, Protocol):
    """What the queue needs of Ray Jobs; job ids are run ids."""

    def start(self, job_id: str, command: str) -> None:
        """Start a job; does nothing if one of this id was started already."""

    def find_state(self, job_id: str) -> JobState:
        """Whether a job is under way, has ended, or was never known to this cluster."""

    def stop(self, job_id: str, timeout_s: float) -> bool:
        """Stop a job and wait until it ended; returns whether it did in time."""

    def read_logs(self, job_id: str) -> str:
        """What a job printed, as far as it is known."""

    def list_nodes(self) -> list[dict[str, float]]:
        """Total resources of every node of the cluster."""


class RunQueue:
    """Runs in the order of their creation, `max_concurrent_runs` at once."""

    def __init__(
        self,
        layout: StorageLayout,
        runner: JobRunner,
        *,
        max_concurrent_runs: int = 1,
        reserved_cpus: float = 0.0,
        reserved_gpus: float = 0.0,
    ) -> None:
        self._layout = layout
        self._runner = runner
        self._files = FileStore(layout)
        self._models = ModelStore(layout)
        self._exports = ExportDesk(layout, runner)
        self._max_concurrent_runs = max_concurrent_runs
        self._reserved_cpus, self._reserved_gpus = reserved_cpus, reserved_gpus
        # One decision about a run at a time: between reading its record and acting on it, nothing
        # else may end or start it.
        self._lock = threading.Lock()
        self._storage_guard = threading.Lock()
        self._storage_lock: IO[str] | None = None

    def close(self) -> None:
        """Let another queue look after the runs."""
        self._exports.close()
        if self._storage_lock is not None:
            self._storage_lock.close()
            self._storage_lock = None

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check a fine-tune wholly and put it into the queue; returns the job as it is shown.

        Raises `ValueError` or `ApiError` for anything that could not work.
        """
        return await asyncio.to_thread(self._create, FineTuneRequest.model_validate(body))

    async def preview(self, file_id: str, model: str, num_rows: int) -> dict[str, Any]:
        """Show how the first rows of a file become tokens for a model."""
        return await asyncio.to_thread(self._preview, file_id, model, num_rows)

    def get_defaults(self, model: str) -> dict[str, Any]:
        """The settings that a fine-tune of `model` has unless told otherwise, and their schema."""
        schema = TrainingSpec.model_json_schema()["properties"]
        return {
            "object": "fine_tuning.defaults",
            "model": model,
            "training": self._default_spec(self._models.resolve(model), "-").model_dump(
                exclude=set(SERVER_SETTINGS)
            ),
            "schema": {key: value for key, value in schema.items() if key not in SERVER_SETTINGS},
        }

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a run now, waiting or computing; returns the job as it is shown.

        Goes on to its end even if nobody waits for it any more. Raises `ApiError` 404 for an
        unknown run, 409 for one that has ended.
        """
        return await asyncio.shield(asyncio.to_thread(self._cancel, find_run(self._layout, run_id)))

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> dict[str, Any]:
        """Begin to turn a checkpoint of a run into a model; see `ExportDesk.begin`."""
        if not self._holds_storage():
            raise ApiError(503, "another application looks after the jobs of this storage")
        return await asyncio.to_thread(self._exports.begin, run_id, checkpoint_id, model_id)

    async def reconcile(self) -> None:
        """Bring what is on disk and what computes together: end what died, start what waits."""
        await asyncio.to_thread(self._reconcile)

    def _cancel(self, run: RunFolder) -> dict[str, Any]:
        with self._lock:
            record = run.read_record()
            if record.is_final:
                message = f"job {record.id!r} has {record.status} already"
                raise ApiError(409, message, code="job_ended")
            run.request_cancel()
            run.add_event("Cancelling")
            if record.writer == "queue":
                self._bury(run)
        if record.writer == "job":
            if not self._runner.stop(record.id, STOP_TIMEOUT_S):
                raise ApiError(504, f"job {record.id!r} did not stop in {STOP_TIMEOUT_S:g} s")
            with self._lock:
                self._bury(run)
        return describe_job(run)

    def _reconcile(self) -> None:
        if not self._holds_storage():
            return
        computing = 0
        waiting: list[RunFolder] = []
        for run, record in self._list_unfinished():
            if record.status == "paused":
                continue  # ended on purpose, to go on later
            if record.writer == "queue":
                waiting.append(run)
            elif (state := self._runner.find_state(record.id)) == "active":
                computing += 1
            elif state == "unknown" and record.status == "queued":
                waiting.append(run)  # we were killed between handing it over and starting it
            else:
                with self._lock:
                    self._bury(run)
        for run in waiting[: max(0, self._max_concurrent_runs - computing)]:
            with self._lock:
                self._start(run)
        self._exports.reconcile()

    def _holds_storage(self) -> bool:
        """Whether this is the one queue of the storage root; dead processes hold no lock."""
        with self._storage_guard:
            if self._storage_lock is None:
                file = self._layout.queue_lock.open("w")
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    file.close()
                    logger.warning("another application looks after the runs here: %s", file.name)
                    return False
                self._storage_lock = file
        return True

    def _create(self, request: FineTuneRequest) -> dict[str, Any]:
        model = self._models.resolve(request.model)
        with model.hold():  # until a record says that it is needed
            return self._create_from(model, request)

    def _create_from(self, model: StoredModel, request: FineTuneRequest) -> dict[str, Any]:
        train_file = self._files.find_content(request.training_file)
        spec = request.resolve_settings(self._default_spec(model, str(train_file)))
        check_resources(spec, self._runner.list_nodes(), self._reserved_cpus, self._reserved_gpus)
        try:
            data = prepare_data(spec, self._layout.token_cache)
        except DataError as exc:
            raise ApiError(
                400, str(exc), param="training_file", code="invalid_training_file"
            ) from exc
        run = RunFolder(self._layout.run(new_id("ftjob")))
        run.path.mkdir()
        link_data(data, run.data)
        launch.tell_data(run, data.summary)
        asked = {**request.model_dump(mode="json"), "model": model.id}
        record = RunRecord(
            id=run.path.name, created_at=int(time.time()), writer="queue", request=asked
        )
        run.add_event("Waiting for its turn")
        run.create(spec, record)
        return describe_job(run, record)

    def _preview(self, file_id: str, model: str, num_rows: int) -> dict[str, Any]:
        stored = self._models.resolve(model)
        file = self._files.find_content(file_id)
        spec = self._default_spec(stored, str(file))
        counts: Mapping[str, Any] = dict.fromkeys(_COUNTS)
        if file.stat().st_size <= _MAX_BYTES_COUNTED:
            counts = prepare_data(spec, self._layout.token_cache).summary
        shown = preview_rows(spec, num_rows)
        rows = [
            {
                "line": row.line,
                "tokens": [
                    {"text": text, "learned": learned}
                    for text, learned in split_tokens(row, shown.tokenizer)
                ],
            }
            for row in shown.rows
        ]
        return {
            "object": "file.preview",
            "format": shown.format,
            "max_length": shown.max_length,
            **{name: counts[name] for name in _COUNTS},
            "rows": rows,
        }

    def _default_spec(self, model: StoredModel, train_file: str) -> TrainingSpec:
        settings = {}
        if find_root(self._models, model) == DEMONSTRATION_MODEL:
            settings = read_demonstration_settings()
        return TrainingSpec.model_validate(
            {**settings, "base_model": str(model.path), "train_file": train_file}
        )

    def _start(self, run: RunFolder) -> None:
        """Hand a run over to its job; the record goes first, and a job starts only once."""
        if run.read_record().is_final or run.is_cancel_requested:
            return
        record = run.update_record(writer="job", job_id=run.path.name)
        command = [sys.executable, "-m", "apps.finetune", "--storage", str(self._layout.root)]
        try:
            self._runner.start(record.id, shlex.join([*command, record.id]))
        except (RuntimeError, OSError) as exc:  # the cluster's; it is asked again soon
            logger.exception("run %s could not be started", record.id)
            message = f"The cluster cannot start it at present, trying again: {exc}"
            if run.read_events()[-1]["message"] != message:
                run.add_event(message, level="warn")
        else:
            logger.info("started run %s", record.id)

    def _bury(self, run: RunFolder) -> None:
        """End a run that computes no more and has not said so itself."""
        record = run.read_record()
        if record.is_final:  # it said so just now
            return
        if has_published(self._models, record.id, name_model(record)):
            # It was killed between publishing and saying so.
            finish_published(self._layout, run)
        elif run.is_cancel_requested:
            self._end(run, "cancelled", "The fine-tune was cancelled")
        else:
            output = self._runner.read_logs(record.id).strip()
            reason = "the application was stopped or its process was killed while it computed"
            if output:
                reason = f"its process ended before its time: {output.splitlines()[-1][:300]}"
            self._end(run, "failed", f"The fine-tune failed: {reason}", reason)

    def _end(
        self, run: RunFolder, status: RunStatus, message: str, reason: str | None = None
    ) -> None:
        run.add_event(message, level="error" if reason else "info")
        error = RunError(code="interrupted", message=reason).model_dump() if reason else None
        run.update_record(status=status, finished_at=int(time.time()), writer="queue", error=error)

    def _list_unfinished(self) -> Iterator[tuple[RunFolder, RunRecord]]:
        """Runs that have not ended, oldest first."""
        for run, record in reversed(list_runs(self._layout)):
            if not record.is_final:
                yield run, record


def find_root(models: ModelStore, model: StoredModel) -> str:
    """Follow a model's lineage to the base model that it came from; returns that one's id."""
    seen = set()
    while (parent := model.lineage.base_model) and parent not in seen:
        seen.add(parent)
        found = models.find(parent)
        if found is None:
            return parent
        model = found
    return model.id


def finish_published(layout: StorageLayout, run: RunFolder) -> None:
    """Say that a run's model is published: move `latest` to it, and end the run well."""
    model_id = name_model(run.read_record())
    ModelStore(layout).point_alias(LATEST_ALIAS, model_id)
    run.add_event(f"Published as {model_id}, and {LATEST_ALIAS!r} points to it")
    launch.succeed_run(run, model_id)
