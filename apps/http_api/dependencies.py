"""The services that the HTTP routes use; the same in a Serve replica and in a test."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from apps.evaluations.evaluation_store import EvaluationStore
from apps.evaluations.row_index import EvaluatedRowReader
from apps.file_store import FileStore
from apps.fine_tuning.index.events_index import EventsReader
from apps.fine_tuning.index.metrics_index import MetricsReader
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_index import RunIndex
from apps.fine_tuning.rows.row_pages import RowQuery
from apps.fine_tuning.rows.survey_objects import FindingKind
from apps.http_api.cluster.machine_use import MachineMonitor
from apps.http_api.cluster.ray_nodes import ClusterNodes, RayNodes
from apps.hub.settings import HubSettings
from apps.settings import UsageLimits
from apps.upstream.proxy import UpstreamProxy
from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.request import ClassifyRequest
from serving.classification.wire import ClassifyAnswer, EmbedAnswer
from serving.store.model_store import ModelStore
from serving.wire import StreamItem, ValidRequest, WholeAnswer
from storage.layout import StorageLayout


class TextGenerator(Protocol):
    """Generates chat and text completions."""

    def stream(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[StreamItem, None]:
        """Yield parts of a response; the first has the model's origin. `body` is for the log."""

    async def answer(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> WholeAnswer:
        """Return the whole response; `body` is for the log."""

    async def check(self) -> None:
        """Raise if no response can be generated at present."""


class InputClassification(Protocol):
    """Classifies texts and images, and computes the vectors of texts."""

    async def classify(
        self, request: ClassifyRequest, body: Mapping[str, Any], request_id: str
    ) -> ClassifyAnswer:
        """Return the classifications of all inputs; `body` is for the log."""

    async def embed(
        self, request: EmbeddingRequest, body: Mapping[str, Any], request_id: str
    ) -> EmbedAnswer:
        """Return the vectors of all inputs; `body` is for the log."""

    async def check(self) -> None:
        """Raise if no request can be answered at present."""


class FineTuning(Protocol):
    """Accepts and controls fine-tuning jobs."""

    async def create(self, body: dict[str, Any]) -> Mapping[str, object]:
        """Validate and queue a fine-tuning job."""

    async def estimate(self, body: dict[str, Any]) -> Mapping[str, object]:
        """Validate a fine-tuning job, and estimate what it will take."""

    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Show rows of a file as tokens."""

    async def read_rows(self, file_id: str, query: RowQuery) -> Mapping[str, object]:
        """Show a page of the rows of a file."""

    async def survey_rows(
        self, file_id: str, model: str, training: Mapping[str, object]
    ) -> Mapping[str, object]:
        """Show what a survey of the rows of a file counted."""

    async def list_findings(
        self, file_id: str, model: str, training: Mapping[str, object], kind: FindingKind
    ) -> Sequence[Mapping[str, object]]:
        """List the rows of one kind that a survey found."""

    async def get_defaults(self, model: str, task: str | None) -> Mapping[str, object]:
        """Return the default settings of a fine-tuning job for a model and a task."""

    async def cancel(self, run_id: str) -> Mapping[str, object]:
        """Cancel a fine-tuning job."""

    async def pause(self, run_id: str) -> Mapping[str, object]:
        """Pause a fine-tuning job and free its resources; it can be resumed later."""

    async def resume(self, run_id: str) -> Mapping[str, object]:
        """Resume a paused, failed or cancelled fine-tuning job."""

    async def extend(self, run_id: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Create a job that continues a succeeded one."""

    async def delete(self, run_id: str) -> None:
        """Delete a fine-tuning job that has ended."""

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> Mapping[str, object]:
        """Start publishing a checkpoint as a model."""

    async def check(self) -> None:
        """Raise if no fine-tuning job can be accepted at present."""


class Evaluating(Protocol):
    """Accepts and controls evaluations of models."""

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, object]:
        """Validate and queue an evaluation."""

    async def cancel(self, evaluation_id: str) -> Mapping[str, object]:
        """Cancel an evaluation."""

    async def delete(self, evaluation_id: str) -> None:
        """Delete an evaluation that has ended."""


@dataclass(frozen=True)
class Services:
    """Everything that a route may use."""

    layout: StorageLayout
    files: FileStore
    models: ModelStore
    text: TextGenerator | UpstreamProxy
    classifier: InputClassification
    fine_tuning: FineTuning
    evaluating: Evaluating
    max_upload_bytes: int
    max_model_bytes: int
    min_free_bytes: int
    max_streams: int
    max_stream_age_s: float
    metrics: MetricsReader = field(default_factory=MetricsReader)
    events: EventsReader = field(default_factory=EventsReader)
    limits: UsageLimits = field(default_factory=UsageLimits)
    hub: HubSettings = field(default_factory=HubSettings)
    nodes: ClusterNodes = field(default_factory=RayNodes)

    @cached_property
    def runs(self) -> RunIndex:
        """Index of the runs, cached in this process."""
        return RunIndex(self.layout)

    @cached_property
    def evaluations(self) -> EvaluationStore:
        """The evaluations on disk; their records are cached in this process."""
        return EvaluationStore(self.layout)

    @cached_property
    def evaluated_rows(self) -> EvaluatedRowReader:
        """The rows of evaluations; their indexes are cached in this process."""
        return EvaluatedRowReader(self.layout)

    @cached_property
    def machine(self) -> MachineMonitor:
        """The use of this machine; `start` records its history."""
        return MachineMonitor(self.layout.root)

    @cached_property
    def model_sizes(self) -> ModelSizes:
        """Sizes of models and checkpoints, cached in this process."""
        return ModelSizes(self.layout)
