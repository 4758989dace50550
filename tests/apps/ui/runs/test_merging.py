"""The adapter of a run is merged from the page, once, and its result is linked."""

import asyncio

import pytest

from apps.client import models as client_of_models
from apps.client.client import ApiClient
from apps.client.connection import ClientTimeouts
from apps.client.errors import RequestRefusedError
from apps.ui.runs.merging import AdapterMerger, Merge
from tests.apps.stub_api import StubApi, ask
from tests.waiting import wait_for

ADAPTER = {"adapter": {"rank": 8, "export": "adapter"}}


def _find(api: StubApi, job_id: str) -> Merge | None:
    async def find(client: ApiClient) -> Merge | None:
        return await AdapterMerger(client).find(await client.jobs.get(job_id))

    return ask(api, find)


def test_only_the_result_of_an_adapter_can_be_merged(api: StubApi) -> None:
    merged = {"adapter": {"rank": 8, "export": "merged"}}
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="a", training=ADAPTER)
    api.add_job("ftjob-2", "succeeded", fine_tuned_model="b", training=merged)
    api.add_job("ftjob-3", "succeeded", fine_tuned_model="c", training={"adapter": None})
    api.add_job("ftjob-4", "running", training=ADAPTER)
    assert {job_id: _find(api, job_id) for job_id in api.jobs} == {
        "ftjob-1": Merge("a-merged"),
        "ftjob-2": None,
        "ftjob-3": None,
        "ftjob-4": None,
    }


def test_merge_is_shown_until_it_ends_and_runs_once(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="a", training=ADAPTER)
    api.are_merges_held = True

    async def merge(client: ApiClient) -> list[Merge | None]:
        merger = AdapterMerger(client)
        job = await client.jobs.get("ftjob-1")
        task = asyncio.create_task(merger.merge("ftjob-1"))
        await wait_for(lambda: api.merges, 20, "the merge has begun")
        # Also after a restart of the page: the server knows it.
        found = [await merger.find(job), await AdapterMerger(client).find(job)]
        await AdapterMerger(client).merge("ftjob-1")
        api.are_merges_held = False
        await task
        return [*found, await merger.find(job)]

    *running, ended = ask(api, merge)
    assert running == [Merge("a-merged", is_running=True)] * 2
    assert ended == Merge("a-merged", exists=True)
    assert api.merged == ["a-merged"]


def test_failed_merge_can_be_tried_again(api: StubApi) -> None:
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="a", training=ADAPTER)
    api.merge_fault = "adapter 'a' was not merged: it does not fit"

    async def merge(client: ApiClient) -> Merge | None:
        merger = AdapterMerger(client)
        job = await client.jobs.get("ftjob-1")
        with pytest.raises(RequestRefusedError, match="it does not fit"):
            await merger.merge("ftjob-1")
        return await merger.find(job)

    assert ask(api, merge) == Merge("a-merged")


def test_merge_that_takes_long_is_waited_for(api: StubApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.add_job("ftjob-1", "succeeded", fine_tuned_model="a", training=ADAPTER)
    api.are_merges_held = True
    monkeypatch.setattr(client_of_models, "_MERGE_INTERVAL_S", 0.01)

    async def merge(client: ApiClient) -> Merge | None:
        task = asyncio.create_task(AdapterMerger(client).merge("ftjob-1"))
        await asyncio.sleep(1)  # longer than the client waits for one response
        assert not task.done()
        api.are_merges_held = False
        await task
        return await AdapterMerger(client).find(await client.jobs.get("ftjob-1"))

    impatient = ClientTimeouts(request_s=0.5, transfer_s=0.5)
    assert ask(api, merge, timeouts=impatient) == Merge("a-merged", exists=True)
