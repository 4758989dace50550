"""The generator and the queue, as the API reaches them: behind Serve handles."""

from collections.abc import AsyncIterator
from typing import Any

from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator


class RemoteChat:
    """The generator behind a Serve handle."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def chat(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Answer one chat; leaving early cancels it."""
        pieces = self._handle.options(stream=True).chat.remote(body)
        assert isinstance(pieces, DeploymentResponseGenerator)
        try:
            async for piece in pieces:
                yield piece
        finally:
            pieces.cancel()  # type: ignore[no-untyped-call]

    async def check(self) -> None:
        """Raise if no generator answers."""
        await self._handle.loaded_models.remote()


class RemoteQueue:
    """The queue behind a Serve handle."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Check and queue a fine-tune."""
        return await self._handle.create.remote(body)  # type: ignore[no-any-return]

    async def preview(self, file_id: str, model: str, num_rows: int) -> dict[str, Any]:
        """Show rows of a file as tokens."""
        return await self._handle.preview.remote(file_id, model, num_rows)  # type: ignore[no-any-return]

    async def get_defaults(self, model: str) -> dict[str, Any]:
        """Settings that a fine-tune of a model has unless told otherwise."""
        return await self._handle.get_defaults.remote(model)  # type: ignore[no-any-return]

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Stop a fine-tune."""
        return await self._handle.cancel.remote(run_id)  # type: ignore[no-any-return]

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> dict[str, Any]:
        """Begin to turn a checkpoint into a model."""
        call = self._handle.publish_checkpoint
        return await call.remote(run_id, checkpoint_id, model_id)  # type: ignore[no-any-return]

    async def check(self) -> None:
        """Raise if the queue does not answer."""
        await self._handle.check_health.remote()
