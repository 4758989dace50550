"""The Serve deployments of the application, and how they are connected.

Api              stateless, any number of replicas; reads the disk, calls the others
Generator        any number of replicas; generates text, unless `upstreams` do
Classifier       none until the first request; classifies texts
FineTuningQueue  one replica; its state is on disk; also evaluates models, and asks `Generator`
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from apps.access.exposure_check import check_exposure, find_serve_host
from apps.access.gate import Gate, read_api_key
from apps.access.keys import KeyStore
from apps.base_models import install_base_models
from apps.bundled import HANDBOOK_FILE_ID, find_handbook
from apps.drain import find_drain_signal
from apps.errors import ApiError
from apps.evaluations.evaluation_objects import EvaluationObject
from apps.file_store import FileStore
from apps.fine_tuning.cluster.ray_jobs import RayJobRunner
from apps.fine_tuning.default_settings import DefaultsObject, describe_defaults
from apps.fine_tuning.job_responses import JobObject
from apps.fine_tuning.planning.job_estimate import EstimateObject
from apps.fine_tuning.publication_tasks import PublishingModel
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.retention import start_retention
from apps.fine_tuning.rows.file_rows import SurveyObject
from apps.fine_tuning.rows.row_pages import RowPageObject, RowQuery
from apps.fine_tuning.rows.survey_objects import FindingKind, FindingObject
from apps.fine_tuning.submission import PreviewObject
from apps.http_api.app import ApiReplica, find_generators
from apps.logical_cpus import API_CPUS, PAGE_CPUS, QUEUE_CPUS
from apps.middleware.admission import HEALTH_SLOTS, MAX_ORDINARY_REQUESTS
from apps.settings import ApplicationSettings, ReplicaSettings
from serving.classification.classifier import (
    CLASSIFIER_CAPACITY,
    CLASSIFIER_CPUS,
    Classifier,
    ClassifierReplicaSettings,
)
from serving.errors import ServingError
from serving.generator import GENERATOR_CPUS, Generator, GeneratorSettings
from serving.refusals import return_refusals
from serving.serve_log import log_to_serve
from serving.settings import GenerationSettings
from serving.store.clean_up import clean_up_models
from serving.store.model_store import ModelStore
from storage.layout import open_storage
from storage.privacy import keep_files_private
from system.library_imports import import_transformers
from system.priority import lower_thread_priority

logger = logging.getLogger(__name__)

RECONCILE_INTERVAL_S = 1.0
_expected = return_refusals(ApiError, ServingError)
_MAX_PASS_S = 300.0
"""Longer than any reconcile pass takes, unless the cluster does not respond."""


def build_app(settings: ApplicationSettings) -> Application:
    """Build the application that `deploy.yaml` names, with typed and checked settings."""
    keep_files_private()
    layout = open_storage(settings.storage)
    gate = Gate(read_api_key(), KeyStore(layout), require_key=settings.require_key)
    check_exposure(gate, find_serve_host())
    store = ModelStore(layout)
    clean_up_models(layout)
    install_base_models(store, settings.base_models)
    FileStore(layout).add(HANDBOOK_FILE_ID, find_handbook().read_bytes(), "handbook.jsonl")
    reserved_cpus = API_CPUS + QUEUE_CPUS + PAGE_CPUS + settings.reserved_cpus
    reserved_cpus += settings.classifier.max_replicas * CLASSIFIER_CPUS
    generator: Application | None = None
    if not settings.upstreams:
        generator = _bind_generator(settings, str(layout.root))
        reserved_cpus += settings.replicas.max * GENERATOR_CPUS
    queue = FineTuningQueue.bind(
        str(layout.root), settings, reserved_cpus, settings.reserved_gpus, generator
    )
    max_requests = MAX_ORDINARY_REQUESTS + settings.max_streams + HEALTH_SLOTS
    api = Api.options(max_ongoing_requests=max_requests, max_queued_requests=max_requests)
    classifier = _bind_classifier(settings, str(layout.root))
    return api.bind(str(layout.root), settings, generator, queue, classifier)


def _bind_generator(settings: ApplicationSettings, storage: str) -> Application:
    options = settings.replicas.to_options(settings.engine.capacity)
    return Generator.options(**options).bind(
        GeneratorSettings(
            storage=storage,
            max_replicas=settings.replicas.max,
            **{name: getattr(settings, name) for name in GenerationSettings.model_fields},
        )
    )


def _bind_classifier(settings: ApplicationSettings, storage: str) -> Application:
    own = settings.classifier
    replicas = ReplicaSettings(min=own.min_replicas, max=own.max_replicas)
    return Classifier.options(**replicas.to_options(CLASSIFIER_CAPACITY)).bind(
        ClassifierReplicaSettings(storage=storage, log_texts=settings.log_texts, **own.model_dump())
    )


class EvaluationCalls:
    """What the API calls about evaluations, of the replica with the queue."""

    _queue: RunQueue

    @_expected
    async def create_evaluation(self, body: Mapping[str, Any]) -> EvaluationObject:
        """Validate and queue an evaluation."""
        return await self._queue.evaluations.create(body)

    @_expected
    async def cancel_evaluation(self, evaluation_id: str) -> EvaluationObject:
        """Cancel an evaluation."""
        return await self._queue.evaluations.cancel(evaluation_id)

    @_expected
    async def delete_evaluation(self, evaluation_id: str) -> None:
        """Delete an evaluation that has ended."""
        await self._queue.evaluations.delete(evaluation_id)


class FileRowCalls:
    """The calls about the rows of files, which the queue's replica answers."""

    _queue: RunQueue

    @_expected
    async def read_rows(self, file_id: str, query: RowQuery) -> RowPageObject:
        """Show a page of the rows of a file."""
        return await self._queue.file_rows.read_page(file_id, query)

    @_expected
    async def survey_rows(
        self, file_id: str, model: str, training: Mapping[str, Any]
    ) -> SurveyObject:
        """Show what a survey of the rows of a file counted."""
        return await self._queue.file_rows.survey(file_id, model, training)

    @_expected
    async def list_findings(
        self, file_id: str, model: str, training: Mapping[str, Any], kind: FindingKind
    ) -> list[FindingObject]:
        """List the rows of one kind that a survey found."""
        return await self._queue.file_rows.list_findings(file_id, model, training, kind)


class FineTuningQueueReplica(EvaluationCalls, FileRowCalls):
    """The queue as one replica, which reconciles the runs on disk once a second."""

    def __init__(
        self,
        storage: str,
        settings: ApplicationSettings,
        reserved_cpus: float,
        reserved_gpus: float,
        generator: DeploymentHandle[Any] | None,
    ) -> None:
        keep_files_private()
        log_to_serve()
        layout = open_storage(storage)
        self._queue = RunQueue(
            layout,
            RayJobRunner(),
            max_concurrent_runs=settings.max_concurrent_runs,
            max_restarts=settings.max_restarts,
            reserved_cpus=reserved_cpus,
            reserved_gpus=reserved_gpus,
            limits=settings.to_limits(),
            allowed_loops=settings.allowed_loops,
            answers=None
            if generator is None
            else find_generators(settings, ModelStore(layout), generator),
        )
        start_retention(layout, settings.max_token_cache_bytes)
        self._drain_signal = find_drain_signal()
        self._reconciled_at = time.monotonic()
        self._task = asyncio.get_event_loop().create_task(self._keep_reconciling())
        Thread(target=_import_readers, name="import-readers", daemon=True).start()

    @_expected
    async def create(self, body: Mapping[str, Any]) -> JobObject:
        """Validate and queue a fine-tuning job."""
        return await self._queue.create(body)

    @_expected
    async def estimate(self, body: Mapping[str, Any]) -> EstimateObject:
        """Validate a fine-tuning job, and estimate what it will take."""
        return await self._queue.estimate(body)

    @_expected
    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> PreviewObject:
        """Show rows of a file as tokens."""
        return await self._queue.preview(file_id, model, num_rows, training)

    @_expected
    async def get_defaults(self, model: str, task: str | None) -> DefaultsObject:
        """Return the default settings of a fine-tuning job for a model and a task."""
        store = ModelStore(self._queue.layout)
        return await asyncio.to_thread(describe_defaults, store, model, task)

    @_expected
    async def cancel(self, run_id: str) -> JobObject:
        """Cancel a fine-tuning job."""
        return await self._queue.cancel(run_id)

    @_expected
    async def pause(self, run_id: str) -> JobObject:
        """Pause a fine-tuning job and free its resources; it can be resumed later."""
        return await self._queue.pause(run_id)

    @_expected
    async def resume(self, run_id: str) -> JobObject:
        """Resume a paused, failed or cancelled fine-tuning job."""
        return await self._queue.resume(run_id)

    @_expected
    async def extend(self, run_id: str, body: Mapping[str, Any]) -> JobObject:
        """Create a job that continues a succeeded one."""
        return await self._queue.extend(run_id, body)

    @_expected
    async def delete(self, run_id: str) -> None:
        """Delete a fine-tuning job that has ended."""
        await self._queue.delete(run_id)

    @_expected
    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> PublishingModel:
        """Start publishing a checkpoint as a model."""
        return await self._queue.publish_checkpoint(run_id, checkpoint_id, model_id)

    def check_health(self) -> None:
        """Raise if reconciling has stopped, so that Serve restarts this replica."""
        if self._task.done():
            raise RuntimeError("the queue's loop has ended")
        if time.monotonic() - self._reconciled_at > _MAX_PASS_S:
            raise RuntimeError(f"the reconcile pass has not ended for {_MAX_PASS_S:g} s")

    async def _keep_reconciling(self) -> None:
        while True:
            try:
                if self._drain_signal is None or not self._drain_signal.is_draining:
                    await self._queue.reconcile()
                elif await self._queue.drain():
                    self._drain_signal.report_runs_paused()
            except Exception:  # the cluster or the storage is unavailable for a moment
                logger.exception("the reconcile pass failed; the next one follows")
            self._reconciled_at = time.monotonic()
            await asyncio.sleep(RECONCILE_INTERVAL_S)


def _import_readers() -> None:
    """Import modules that take seconds before the first job needs them, at low priority."""
    lower_thread_priority()
    import_transformers()
    import training.data.text.preview  # noqa: F401


FineTuningQueue = serve.deployment(
    name="FineTuningQueue",
    num_replicas=1,
    max_ongoing_requests=256,
    max_queued_requests=256,
    ray_actor_options={"num_cpus": QUEUE_CPUS},
    graceful_shutdown_timeout_s=2,
)(FineTuningQueueReplica)


Api = serve.deployment(
    name="Api",
    num_replicas=1,  # `build_app` sets the limits on requests
    ray_actor_options={"num_cpus": API_CPUS},
    graceful_shutdown_timeout_s=5,
)(serve.ingress()(ApiReplica))
