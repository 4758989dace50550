"""What the HTTP routes are made of; the same in a Serve replica and in a test."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from apps.files import FileStore
from apps.fine_tuning.run_index import RunIndex
from apps.metrics_index import MetricsReader
from apps.model_sizes import ModelSizes
from apps.relay import UpstreamRelay
from apps.settings import UsageLimits
from serving.model_store import ModelStore
from serving.origin import RequestKind
from storage.layout import StorageLayout


class TextGenerator(Protocol):
    """Who answers chats and goes on with texts."""

    def stream(
        self, kind: RequestKind, body: dict[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        """Answer in pieces, `{"origin", "pieces"}`; the first says what answers."""

    async def answer(
        self, kind: RequestKind, body: dict[str, Any], request_id: str
    ) -> dict[str, Any]:
        """Answer as a whole: what answers, and one piece per answer."""

    async def check(self) -> None:
        """Raise if no answer can be given at present."""


class FineTuning(Protocol):
    """Who takes fine-tunes in."""

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check and queue a fine-tune."""

    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Show rows of a file as tokens."""

    async def get_defaults(self, model: str) -> dict[str, Any]:
        """Settings that a fine-tune of a model has unless told otherwise."""

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a fine-tune."""

    async def pause(self, run_id: str) -> dict[str, Any]:
        """Have a fine-tune free its resources, to go on later."""

    async def resume(self, run_id: str) -> dict[str, Any]:
        """Let a paused fine-tune go on."""

    async def delete(self, run_id: str) -> None:
        """Remove what is left of a fine-tune that has ended."""

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> dict[str, Any]:
        """Begin to turn a checkpoint into a model."""

    async def check(self) -> None:
        """Raise if no fine-tune can be taken in at present."""


@dataclass(frozen=True)
class Services:
    """Everything that a route may use."""

    layout: StorageLayout
    files: FileStore
    models: ModelStore
    text: TextGenerator | UpstreamRelay
    fine_tuning: FineTuning
    max_upload_bytes: int
    max_model_bytes: int
    min_free_bytes: int
    max_streams: int
    max_stream_age_s: float
    metrics: MetricsReader = field(default_factory=MetricsReader)
    limits: UsageLimits = field(default_factory=UsageLimits)

    @cached_property
    def runs(self) -> RunIndex:
        """The runs, as this process has read them."""
        return RunIndex(self.layout)

    @cached_property
    def model_sizes(self) -> ModelSizes:
        """The sizes of models and checkpoints, as this process has read them."""
        return ModelSizes(self.layout)
