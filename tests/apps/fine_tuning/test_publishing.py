"""Publishing checkpoints as models: from a run's folder, with damage, and with kills in between."""

import asyncio
import multiprocessing
import os
import random
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from transformers import AutoModelForCausalLM

from apps.access.keys import KeyStore
from apps.access.roles import Role
from apps.errors import ApiError
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.index.model_sizes import ModelSizes
from apps.fine_tuning.index.run_lookup import name_model
from apps.fine_tuning.publication_tasks import execute_export
from apps.fine_tuning.publishing import (
    list_run_checkpoints,
    name_checkpoint_model,
    publish_checkpoint,
)
from apps.fine_tuning.queue import RunQueue
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from serving.errors import ModelInUseError
from serving.loading.loading import load_model
from serving.store.model_store import ModelStore
from storage import durable
from storage.durable import read_json_lines
from storage.layout import StorageLayout
from storage.locks import LockedError, lock_existing
from tests.apps.conftest import NotedJobs
from tests.damage import damage
from tests.written_checkpoint import start_checkpoint, write_sharded
from training.adapters.layers import add_adapter
from training.base_model import UnknownModelError, find_revision
from training.checkpoint.format import CheckpointError
from training.export.zero_shards import ShardsError
from training.preflight.adapter_check import count_learned_parameters
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

pytestmark = pytest.mark.anyio

NUM_KILLS = 20
TIMEOUT_S = 120.0


@pytest.fixture
def run(layout: StorageLayout, tiny_model: Path) -> RunFolder:
    """An active run with checkpoints of two workers."""
    run = create_active_run(layout)
    add_checkpoint(run, tiny_model, 10)
    return run


def create_active_run(layout: StorageLayout, **settings: Any) -> RunFolder:
    run = RunFolder(layout.run("ftjob-0001"))
    run.data.mkdir(parents=True)
    summary = {"name": "rows", "num_rows": 1, "num_tokens": 2, "num_learned_tokens": 1}
    hashes = {"sha256": "0" * 64, "fingerprint": "0" * 64}
    durable.write_json(run.data / "summary.json", {**summary, **hashes})
    run.events.add("Training for 20 steps in 1 epochs")
    request = {"model": "tiny", "training_file": "file-1"}
    record = RunRecord(
        id=run.path.name,
        created_at=1,
        status="running",
        writer="job",
        job_id=run.path.name,
        request=request,
        base_revision=find_revision(str(layout.model("tiny"))),
    )
    sources = {"base_model": str(layout.model("tiny")), "train_file": "-", "precision": "fp32"}
    run.create(TrainingSpec.model_validate({**sources, **settings}), record)
    return run


def add_checkpoint(run: RunFolder, base: Path, step: int) -> Path:
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.get_input_embeddings().weight += 0.01 * step
    folder = write_sharded(run.checkpoints / f"checkpoint_{step:010d}", model, 2)
    write_manifests(folder, step, 2)
    return folder


def add_adapter_checkpoint(run: RunFolder, base: Path, step: int) -> Path:
    settings = run.read_spec().adapter
    assert settings is not None
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    add_adapter(model, settings, has_new_head=False, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    folder = run.checkpoints / f"checkpoint_{step:010d}"
    module = model.state_dict()
    buffers = [name for name, _ in model.named_buffers() if name in module]
    states = {"module": module, "buffer_names": buffers, "shared_params": {}}
    torch.save(states, start_checkpoint(folder, model) / "mp_rank_00_model_states.pt")
    write_manifests(folder, step, 1)
    return folder


def write_manifests(folder: Path, step: int, world_size: int) -> None:
    progress = Progress(step=step, num_shares=world_size, epoch_loss_sum=1.0, epoch_num_targets=1)
    if step > 9:  # the last evaluation was before this checkpoint
        progress = progress.model_copy(update={"eval_loss": 2.0, "evaluated_step": 9})
    for rank in range(world_size):
        files = {
            path.relative_to(folder).as_posix(): {
                "size_bytes": path.stat().st_size,
                "sha256": durable.hash_file(path),
            }
            for path in folder.rglob("*")
            if path.is_file()
            and (f"rank_{rank}_mp" in path.name or (not rank and "rank_1" not in path.name))
        }
        manifest = {"rank": rank, "world_size": world_size, "files": files}
        if rank == 0:
            manifest["progress"] = progress.model_dump()
        durable.write_json(folder / f"manifest-{rank:05d}.json", manifest)


def test_checkpoint_of_active_run_is_published(layout: StorageLayout, run: RunFolder) -> None:
    model = publish_checkpoint(layout, run.path.name, 10, "mine")
    assert model.lineage.run_id == run.path.name
    assert model.lineage.checkpoint_step == 10
    revision = model.lineage.model_dump()["base_model_revision"]
    assert revision == f"sha256:{durable.hash_file(layout.model('tiny') / 'manifest.json')}"
    load_model(model.path)
    model.verify()
    store = ModelStore(layout)
    assert store.resolve("latest").id == "tiny", "an alias moved without a request"
    assert run.read_record().status == "running"
    assert not [path for path in run.path.iterdir() if "export" in path.name]


@pytest.mark.parametrize("settings", [{}, {"init": "pissa", "rank": 16}, {"method": "dora"}])
def test_adapter_of_a_run_is_published_for_its_base(
    layout: StorageLayout, tiny_model: Path, settings: dict[str, Any]
) -> None:
    run = create_active_run(layout, adapter={"rank": 4, "export": "adapter", **settings})
    add_adapter_checkpoint(run, tiny_model, 10)
    model = publish_checkpoint(layout, run.path.name, 10, "mine")
    store = ModelStore(layout)
    assert (model.is_adapter, model.task, model.lineage.run_id) == (
        True,
        "causal_lm",
        run.path.name,
    )
    assert store.get_base(model).id == "tiny"
    model.verify()
    with pytest.raises(ModelInUseError, match="^model 'tiny' is "):
        store.delete("tiny")
    assert store.reader.list_adapters(store.get("tiny")) == ["mine"]
    sizes = ModelSizes(layout)
    num_learned = count_learned_parameters(run.read_spec())
    estimate = sizes.estimate_published(run.read_spec(), num_learned)
    assert estimate == pytest.approx(sizes.measure_model("mine"), rel=0.2)


@pytest.mark.parametrize("fault", ["flipped", "cut", "gone"])
def test_damaged_shard_is_named_and_prevents_publishing(
    layout: StorageLayout, run: RunFolder, fault: str
) -> None:
    name = "state/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    damage(run.checkpoints / "checkpoint_0000000010" / name, fault)
    with pytest.raises(ShardsError, match=f"^the checkpoint of step 10 is damaged: {name}"):
        publish_checkpoint(layout, run.path.name, 10, "mine")
    execute_export(layout, run.path.name, 10, "mine")
    last = run.events.read()[-1]
    assert (last["level"], name in last["message"]) == ("error", True)
    assert [model.id for model in ModelStore(layout).list_models()] == ["tiny"]


def test_changed_base_model_prevents_publishing(layout: StorageLayout, run: RunFolder) -> None:
    """Its tokenizer and chat template differ from those that the run was trained with."""
    run.update_record(base_revision="sha256:2")
    with pytest.raises(
        UnknownModelError,
        match="^the base model 'tiny' is not the one that this run was started with: ",
    ):
        publish_checkpoint(layout, run.path.name, 10, "mine")
    store = ModelStore(layout)
    store.remove_alias("latest")
    store.delete("tiny")
    execute_export(layout, run.path.name, 10, "mine")
    message = run.events.read()[-1]["message"]
    assert "base_model 'tiny' is neither the folder of a Hugging Face model" in message
    assert str(layout.root) not in message


def test_missing_checkpoint_raises(layout: StorageLayout, run: RunFolder) -> None:
    with pytest.raises(CheckpointError, match="^the checkpoint of step 11 is gone$"):
        publish_checkpoint(layout, run.path.name, 11, "mine")


def test_killed_export_leaves_no_partial_model(layout: StorageLayout, run: RunFolder) -> None:
    """After each kill, all stored models are complete, the alias resolves, and the id is free."""
    store = ModelStore(layout)
    store.point_alias("latest", "tiny")
    started = time.monotonic()
    assert publish_in_child(layout, run, "whole") == 0
    whole_s = time.monotonic() - started
    generator = random.Random(0)
    deadline = started + TIMEOUT_S
    num_killed = 0
    while num_killed < NUM_KILLS:
        started = time.monotonic()
        assert started < deadline, f"only {num_killed} exports were killed before their end"
        delay_s = generator.uniform(0, whole_s)
        if publish_in_child(layout, run, "mine", kill_after_s=delay_s) == -signal.SIGKILL:
            num_killed += 1
        else:  # finished before the kill: faster than estimated
            whole_s = min(whole_s, time.monotonic() - started)
        for model in store.list_models():
            model.verify()
            load_model(model.path)
        assert store.resolve("latest").id == "tiny"
        if store.find("mine") is not None:
            store.delete("mine")
    assert publish_in_child(layout, run, "mine") == 0
    store.get("mine").verify()
    assert sorted(path.name for path in layout.models.iterdir()) == ["mine", "tiny", "whole"]
    left = [path.name for path in run.path.glob("*export-*")]
    left = [name for name in left if not name.startswith(".new-")]  # empty, removed after 1 h
    assert not left, "folders of killed exports remain"


def publish_in_child(
    layout: StorageLayout, run: RunFolder, model_id: str, kill_after_s: float | None = None
) -> int:
    """Publish in a forked process; returns its exit status."""
    torch.set_num_threads(1)  # a forked child has no other threads
    child = multiprocessing.get_context("fork").Process(
        target=publish_checkpoint, args=(layout, run.path.name, 10, model_id)
    )
    child.start()
    child.join(kill_after_s)
    if child.is_alive():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
    assert child.exitcode is not None
    return child.exitcode


async def test_checkpoints_are_listed_and_published_over_http(
    client: httpx.AsyncClient, services: Services, run: RunFolder, jobs: NotedJobs
) -> None:
    path = f"/v1/fine_tuning/jobs/{run.path.name}/checkpoints"
    add_checkpoint(run, services.models.get("tiny").path, 20)
    listed = (await client.get(path)).json()
    assert [entry["step_number"] for entry in listed["data"]] == [20, 10]
    assert listed["data"] == list_run_checkpoints(run)
    first = listed["data"][0]
    begun = await client.post(f"{path}/{first['id']}/publish")
    assert (begun.status_code, begun.json()["status"]) == (202, "publishing")
    begun = await client.post(f"{path}/{first['id']}/publish", json={"model": "mine"})
    line = read_json_lines(services.layout.access.audit)[-1]
    assert (line["subject"], line["created"]) == (f"{run.path.name}/{first['id']}", "mine")
    assert begun.json()["id"] == "mine"
    default = name_checkpoint_model(run, 20)
    assert jobs.tasks == [
        Task("export", model_id, (run.path.name, 20)) for model_id in (default, "mine")
    ]

    own = name_model(run.read_record())
    reasons = {
        "tiny": "'tiny' is published already",
        "mine": "'mine' is being published by job 'ftjob-0001'",
        own: "is what job 'ftjob-0001' calls its model",
    }
    for model_id, reason in reasons.items():
        taken = await client.post(f"{path}/{first['id']}/publish", json={"model": model_id})
        assert taken.status_code == 409
        assert reason in taken.json()["error"]["message"]
    for number in range(2):
        begun = await client.post(f"{path}/{first['id']}/publish", json={"model": f"m-{number}"})
    busy = await client.post(f"{path}/{first['id']}/publish", json={"model": "one-too-many"})
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "30")
    assert (await client.post(f"{path}/nope/publish")).status_code == 404
    bad = await client.post(f"{path}/{first['id']}/publish", json={"model": "../x"})
    assert bad.status_code == 400


async def begin(queue: RunQueue, run: RunFolder, model_id: str) -> None:
    await queue.publish_checkpoint(run.path.name, f"{run.path.name}-step-10", model_id)


async def test_export_emits_start_and_completion_events_once(
    layout: StorageLayout, queue: RunQueue, run: RunFolder, jobs: NotedJobs
) -> None:
    jobs.states[run.path.name] = "active"
    await begin(queue, run, "mine")
    execute_export(layout, run.path.name, 10, "mine")
    jobs.running.clear()
    await queue.reconcile()
    messages = [event["message"] for event in run.events.read()]
    assert [message for message in messages if "mine" in message] == [
        "Publishing step 10 as mine",
        "Published step 10 as mine",
    ]
    ModelStore(layout).get("mine").verify()


async def test_failed_export_process_emits_error_event(
    queue: RunQueue, run: RunFolder, jobs: NotedJobs
) -> None:
    jobs.states[run.path.name] = "active"
    await begin(queue, run, "mine")
    await queue.reconcile()
    assert run.events.read()[-1]["message"] == "Publishing step 10 as mine"
    jobs.running.clear()
    jobs.task_failures["export", "mine"] = "its node has left the cluster"
    await queue.reconcile()
    last = run.events.read()[-1]
    assert last["level"] == "error"
    assert last["message"] == (
        "'mine' was not published: its node has left the cluster; publish the checkpoint again"
    )
    await begin(queue, run, "mine")


async def test_foreign_model_with_same_id_does_not_count_as_export(
    queue: RunQueue, run: RunFolder, jobs: NotedJobs, layout: StorageLayout, tiny_model: Path
) -> None:
    jobs.states[run.path.name] = "active"
    await begin(queue, run, "mine")
    ModelStore(layout).add(tiny_model, "mine")
    jobs.running.clear()
    await queue.reconcile()
    assert "'mine' was not published" in run.events.read()[-1]["message"]


async def test_second_application_refuses_exports(
    queue: RunQueue, run: RunFolder, layout: StorageLayout
) -> None:
    await queue.reconcile()
    other = RunQueue(layout, NotedJobs())
    with closing(other), pytest.raises(ApiError, match="^another application"):
        await begin(other, run, "mine")


async def test_checkpoint_is_locked_until_its_export_ends(
    queue: RunQueue, run: RunFolder, jobs: NotedJobs
) -> None:
    jobs.states[run.path.name] = "active"
    manifest = run.checkpoints / "checkpoint_0000000010" / "manifest-00000.json"
    await begin(queue, run, "mine")
    with pytest.raises(LockedError), lock_existing(manifest):
        pass
    jobs.running.clear()
    await queue.reconcile()
    with lock_existing(manifest):
        pass


async def chat(client: httpx.AsyncClient, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "one two"}]}
    return await client.post("/v1/chat/completions", json=body)


async def do_tasks(layout: StorageLayout, jobs: NotedJobs, num_tasks: int) -> None:
    """Run the requested export tasks, as the cluster would."""
    done = 0
    async with asyncio.timeout(TIMEOUT_S):
        while done < num_tasks:
            for task in jobs.tasks[done:]:
                run_id, step = task.arguments
                await asyncio.to_thread(
                    execute_export, layout, str(run_id), int(step), task.subject
                )
                jobs.running.discard((task.kind, task.subject))
                done += 1
            await asyncio.sleep(0.01)


async def test_request_with_checkpoint_name_publishes_checkpoint_on_demand(
    client: httpx.AsyncClient, layout: StorageLayout, run: RunFolder, jobs: NotedJobs
) -> None:
    listed = (await client.get(f"/v1/fine_tuning/jobs/{run.path.name}/checkpoints")).json()
    (checkpoint,) = listed["data"]
    FineTuningJobCheckpoint.model_validate(checkpoint)
    assert checkpoint["metrics"] == {
        "step": 10,
        "train_loss": 1.0,
        "valid_loss": None,
        "full_valid_loss": None,
        "epoch": 1,
        "trained_tokens": 0,
    }
    name = checkpoint["fine_tuned_model_checkpoint"]
    exporting = asyncio.create_task(do_tasks(layout, jobs, 1))
    answers = await asyncio.gather(*(chat(client, name) for _ in range(3)))
    await exporting
    assert [answer.status_code for answer in answers] == [200] * 3, answers[0].text
    assert {answer.headers["x-model-id"] for answer in answers} == {name}
    assert answers[0].headers["x-checkpoint"] == "step-10"
    assert len(jobs.tasks) == 1
    assert (await chat(client, name)).status_code == 200
    text = await client.post("/v1/completions", json={"model": name, "prompt": "one"})
    assert text.status_code == 200


async def test_checkpoint_is_not_published_for_key_with_chat_role(
    services: Services, layout: StorageLayout, run: RunFolder, jobs: NotedJobs
) -> None:
    name = name_checkpoint_model(run, 10)
    keys = KeyStore(layout)
    transport = httpx.ASGITransport(build_http(services, None))
    async with httpx.AsyncClient(transport=transport, base_url="http://box") as client:
        client.headers["authorization"] = f"Bearer {keys.create('ann', Role.CHAT).text}"
        refused = await chat(client, name)
        assert refused.status_code == 403
        assert "the key 'ann' has the role 'chat'" in refused.json()["error"]["message"]
        assert jobs.tasks == []
        client.headers["authorization"] = f"Bearer {keys.create('bob', Role.TRAIN).text}"
        exporting = asyncio.create_task(do_tasks(layout, jobs, 1))
        assert (await chat(client, name)).status_code == 200
        await exporting
        client.headers["authorization"] = f"Bearer {keys.rotate('ann').text}"
        assert (await chat(client, name)).status_code == 200, (
            "the published checkpoint is not served"
        )
    refusal, publication = read_json_lines(layout.access.audit)
    assert (refusal["key"], refusal["subject"], refusal["outcome"]) == ("ann", name, "refused")
    assert (refusal["status"], refusal["reason"]) == (403, "insufficient_permission")
    assert (publication["key"], publication["outcome"]) == ("bob", "done")
    assert (publication["subject"], publication["created"]) == (name, name)


async def test_request_with_name_of_damaged_checkpoint_gets_409(
    client: httpx.AsyncClient, layout: StorageLayout, run: RunFolder, jobs: NotedJobs
) -> None:
    next(run.checkpoints.glob("*/state/*model_states.pt")).write_bytes(b"nothing")
    exporting = asyncio.create_task(do_tasks(layout, jobs, 1))
    refused = await chat(client, name_checkpoint_model(run, 10))
    await exporting
    assert refused.status_code == 409
    assert "the events of job 'ftjob-0001' contain the reason" in refused.json()["error"]["message"]


async def test_request_with_checkpoint_name_gets_503_while_export_runs(
    client: httpx.AsyncClient, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.http_api.publish_on_demand.WAIT_S", 0.2)
    late = await chat(client, name_checkpoint_model(run, 10))
    assert (late.status_code, late.json()["error"]["code"]) == (503, "model_not_ready")


@pytest.mark.parametrize("name", ["nobody-step-10", "tiny-step-1", "x-step-", "../x-step-1"])
async def test_invalid_checkpoint_name_gets_404(
    client: httpx.AsyncClient, run: RunFolder, jobs: NotedJobs, name: str
) -> None:
    answer = await chat(client, name)
    assert answer.status_code == 404
    assert jobs.tasks == []
