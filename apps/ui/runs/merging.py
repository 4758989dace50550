"""Merging the adapter of a run into its base model, from the page."""

from typing import NamedTuple

from apps.client.client import ApiClient
from apps.client.errors import RequestRefusedError
from apps.client.resources import Job


class Merge(NamedTuple):
    """The merged model of a run's adapter, whether it exists, and whether it is being made."""

    model_id: str
    exists: bool = False
    is_running: bool = False


class AdapterMerger:
    """Merges adapters and shows which merges are in progress, as the server reports it."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def find(self, job: Job) -> Merge | None:
        """Return the merge of a run's result; None if the result is not an adapter.

        Raises `ApiClientError`.
        """
        model_id = _name_merged(job)
        if model_id is None:
            return None
        if await self._is_running(job, model_id):
            return Merge(model_id, is_running=True)
        try:
            await self._client.models.get(model_id)
        except RequestRefusedError as exc:
            if exc.status != 404:
                raise
            return Merge(model_id)
        return Merge(model_id, exists=True)

    async def merge(self, run_id: str) -> None:
        """Merge the adapter of a run, unless that is in progress; raises `ApiClientError`."""
        job = await self._client.jobs.get(run_id)
        model_id = _name_merged(job)
        if model_id is None or await self._is_running(job, model_id):
            return
        await self._client.models.merge(job.fine_tuned_model or "", model_id)

    async def _is_running(self, job: Job, model_id: str) -> bool:
        try:
            merges = await self._client.models.list_merges(job.fine_tuned_model or "")
        except RequestRefusedError as exc:
            if exc.status != 404:  # the adapter was deleted
                raise
            return False
        return any(merge.is_running and merge.id == model_id for merge in merges)


def _name_merged(job: Job) -> str | None:
    """Return the id of the model that a run's adapter is merged into; None without an adapter."""
    adapter = job.training.get("adapter")
    is_adapter = isinstance(adapter, dict) and adapter.get("export") == "adapter"
    if job.status != "succeeded" or not job.fine_tuned_model or not is_adapter:
        return None
    return f"{job.fine_tuned_model}-merged"
