"""What the HTTP routes are made of; the same in a Serve replica and in a test."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from apps.files import FileStore
from serving.model_store import ModelStore
from storage.layout import StorageLayout


class Chat(Protocol):
    """Who answers chats: first an opening that names the model, then pieces of text."""

    def chat(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Answer one chat request."""

    async def check(self) -> None:
        """Raise if no answer can be given at present."""


class FineTuning(Protocol):
    """Who takes fine-tunes in."""

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check and queue a fine-tune."""

    async def preview(self, file_id: str, model: str, num_rows: int) -> dict[str, Any]:
        """Show rows of a file as tokens."""

    async def get_defaults(self, model: str) -> dict[str, Any]:
        """Settings that a fine-tune of a model has unless told otherwise."""

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a fine-tune."""

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
    chat: Chat
    fine_tuning: FineTuning
    max_upload_bytes: int
    max_model_bytes: int
