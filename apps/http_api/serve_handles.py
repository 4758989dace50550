"""Clients of generator, classifier and queue, which the API reaches through Serve handles."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from apps.fine_tuning.rows.row_pages import RowQuery
from apps.fine_tuning.rows.survey_objects import FindingKind
from apps.http_api.deployment_health import DeploymentHealth
from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.request import ClassifyRequest
from serving.classification.wire import ClassifyAnswer, ClassifyCall, EmbedAnswer, EmbedCall
from serving.errors import DeadlineExceededError
from serving.refusals import Refusal, unwrap
from serving.store.model_store import ModelStore
from serving.wire import StreamItem, TextRequest, ValidRequest, WholeAnswer

logger = logging.getLogger(__name__)


class RemoteText:
    """The generators behind a Serve handle.

    With `models`, a request is routed to a replica that has its model in memory, if that has
    capacity. Every request ends after `timeout_s`, even if no generator has accepted it: this is
    slightly more than the generators' own deadline. With `may_sleep`, zero replicas are not a
    fault. With `log_texts`, generators receive the bodies of requests for their log.
    """

    def __init__(
        self,
        handle: DeploymentHandle[Any],
        *,
        models: ModelStore | None,
        timeout_s: float,
        may_sleep: bool,
        log_texts: bool,
    ) -> None:
        # A piece of a response costs a third by gRPC of what it costs as a Ray object, and pickle
        # a quarter of cloudpickle, which calls Python code for every object.
        self._handle = handle.options(_by_reference=False, request_serialization="pickle")
        self._streaming_handle = self._handle.options(stream=True, response_serialization="pickle")
        self._models = models
        self._timeout_s = timeout_s
        self._may_sleep = may_sleep
        self._log_texts = log_texts
        self._health = DeploymentHealth()

    async def stream(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield the response in pieces; closing the generator early cancels the request."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        sent = self._pack(request, body, request_id)
        for is_last_try in (False, True):
            items = self._route(self._streaming_handle, request).stream.remote(sent)
            assert isinstance(items, DeploymentResponseGenerator)
            has_begun = False
            try:
                while True:
                    async with asyncio.timeout_at(deadline):
                        item: StreamItem | Refusal = await anext(items)
                    has_begun = True
                    yield unwrap(item)
            except StopAsyncIteration:
                return
            except TimeoutError as exc:
                raise self._describe_timeout() from exc
            except RayActorError:
                if has_begun or is_last_try:
                    raise
                logger.warning(
                    "%s: a generator replica died before it answered; retrying", request_id
                )
            finally:
                items.cancel()  # type: ignore[no-untyped-call]

    async def answer(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> WholeAnswer:
        """Return the whole response; cancellation cancels the request."""
        sent = self._pack(request, body, request_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    return await self._answer(sent)
                except RayActorError:
                    logger.warning("%s: its generator replica died; retrying", request_id)
                    return await self._answer(sent)
        except TimeoutError as exc:
            raise self._describe_timeout() from exc

    async def check(self) -> None:
        """Raise if no generator can respond; one that may sleep is not started."""
        application, deployment = self._handle.app_name, self._handle.deployment_name
        await self._health.check(application, deployment, may_sleep=self._may_sleep)

    async def _answer(self, sent: TextRequest) -> WholeAnswer:
        response = self._route(self._handle, sent.content).answer.remote(sent)
        try:
            answer: WholeAnswer | Refusal = await response
        except asyncio.CancelledError:
            response.cancel()  # type: ignore[no-untyped-call]
            raise
        return unwrap(answer)

    def _pack(self, request: ValidRequest, body: Mapping[str, Any], request_id: str) -> TextRequest:
        return TextRequest(request_id, request, str(dict(body)) if self._log_texts else None)

    def _route(self, handle: DeploymentHandle[Any], request: ValidRequest) -> DeploymentHandle[Any]:
        """Pass the model's id to Serve's router if the model exists: the router keeps every id."""
        if self._models is None:
            return handle
        return handle.options(multiplexed_model_id=self._models.resolve(request.model).id)

    def _describe_timeout(self) -> DeadlineExceededError:
        return DeadlineExceededError(f"no complete answer within {self._timeout_s:g} s")


class RemoteClassifier:
    """The classifiers behind a Serve handle; the first request starts one.

    Every request ends after `timeout_s`, which is slightly more than the classifiers' own deadline.
    With `log_texts`, classifiers receive the bodies of requests for their log.
    """

    def __init__(self, handle: DeploymentHandle[Any], *, timeout_s: float, log_texts: bool) -> None:
        self._handle = handle.options(_by_reference=False, request_serialization="pickle")
        self._timeout_s = timeout_s
        self._log_texts = log_texts
        self._health = DeploymentHealth()

    async def classify(
        self, request: ClassifyRequest, body: Mapping[str, Any], request_id: str
    ) -> ClassifyAnswer:
        """Return the classifications of all inputs; cancellation cancels the request."""
        call = ClassifyCall(request_id, request, self._describe_body(body))
        answer: ClassifyAnswer = await self._retry("classify", call)
        return answer

    async def embed(
        self, request: EmbeddingRequest, body: Mapping[str, Any], request_id: str
    ) -> EmbedAnswer:
        """Return the vectors of all inputs; cancellation cancels the request."""
        call = EmbedCall(request_id, request, self._describe_body(body))
        answer: EmbedAnswer = await self._retry("embed", call)
        return answer

    async def check(self) -> None:
        """Raise if no request can be answered; zero replicas are not a fault."""
        application, deployment = self._handle.app_name, self._handle.deployment_name
        await self._health.check(application, deployment, may_sleep=True)

    def _describe_body(self, body: Mapping[str, Any]) -> str | None:
        return str(dict(body)) if self._log_texts else None

    async def _retry(self, method: str, call: ClassifyCall | EmbedCall) -> Any:
        """Call a method; once more if the replica died."""
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    return await self._call(method, call)
                except RayActorError:
                    logger.warning("%s: its classifier replica died; retrying", call.id)
                    return await self._call(method, call)
        except TimeoutError as exc:
            raise DeadlineExceededError(f"no answer within {self._timeout_s:g} s") from exc

    async def _call(self, method: str, call: ClassifyCall | EmbedCall) -> Any:
        response = getattr(self._handle, method).remote(call)
        try:
            answer: Any = await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        return unwrap(answer)


class QueueClient:
    """The queue behind a Serve handle."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._health = DeploymentHealth()

    async def create(self, body: dict[str, Any]) -> Mapping[str, object]:
        """Validate and queue a fine-tuning job."""
        return unwrap(await self._handle.create.remote(body))

    async def estimate(self, body: dict[str, Any]) -> Mapping[str, object]:
        """Validate a fine-tuning job, and estimate what it will take."""
        return unwrap(await self._handle.estimate.remote(body))

    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Show rows of a file as tokens."""
        call = self._handle.preview
        return unwrap(await call.remote(file_id, model, num_rows, training))

    async def read_rows(self, file_id: str, query: RowQuery) -> Mapping[str, object]:
        """Show a page of the rows of a file."""
        return unwrap(await self._handle.read_rows.remote(file_id, query))

    async def survey_rows(
        self, file_id: str, model: str, training: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Show what a survey of the rows of a file counted."""
        return unwrap(await self._handle.survey_rows.remote(file_id, model, training))

    async def list_findings(
        self, file_id: str, model: str, training: Mapping[str, object], kind: FindingKind
    ) -> Sequence[Mapping[str, object]]:
        """List the rows of one kind that a survey found."""
        return unwrap(await self._handle.list_findings.remote(file_id, model, training, kind))

    async def get_defaults(self, model: str, task: str | None) -> Mapping[str, object]:
        """Return the default settings of a fine-tuning job for a model and a task."""
        return unwrap(await self._handle.get_defaults.remote(model, task))

    async def cancel(self, run_id: str) -> Mapping[str, object]:
        """Cancel a fine-tuning job."""
        return unwrap(await self._handle.cancel.remote(run_id))

    async def pause(self, run_id: str) -> Mapping[str, object]:
        """Pause a fine-tuning job and free its resources; it can be resumed later."""
        return unwrap(await self._handle.pause.remote(run_id))

    async def resume(self, run_id: str) -> Mapping[str, object]:
        """Resume a paused, failed or cancelled fine-tuning job."""
        return unwrap(await self._handle.resume.remote(run_id))

    async def extend(self, run_id: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Create a job that continues a succeeded one."""
        return unwrap(await self._handle.extend.remote(run_id, dict(body)))

    async def delete(self, run_id: str) -> None:
        """Delete a fine-tuning job that has ended."""
        unwrap(await self._handle.delete.remote(run_id))

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> Mapping[str, object]:
        """Start publishing a checkpoint as a model."""
        call = self._handle.publish_checkpoint
        return unwrap(await call.remote(run_id, checkpoint_id, model_id))

    async def check(self) -> None:
        """Raise if the queue cannot respond."""
        await self._health.check(self._handle.app_name, self._handle.deployment_name)


class QueueEvaluations:
    """The evaluations of the queue behind a Serve handle."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, object]:
        """Validate and queue an evaluation."""
        return unwrap(await self._handle.create_evaluation.remote(dict(body)))

    async def cancel(self, evaluation_id: str) -> Mapping[str, object]:
        """Cancel an evaluation."""
        return unwrap(await self._handle.cancel_evaluation.remote(evaluation_id))

    async def delete(self, evaluation_id: str) -> None:
        """Delete an evaluation that has ended."""
        unwrap(await self._handle.delete_evaluation.remote(evaluation_id))
