"""Fine-tuning jobs over HTTP: pages, state changes, streamed events and logs."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import uvicorn
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent

from apps.file_store import FileStore
from apps.fine_tuning.index.run_lookup import find_run
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from storage.layout import StorageLayout
from tests.waiting import wait_for
from training.run.folder import RunFolder
from training.task import ConfusionMatrix

pytestmark = pytest.mark.anyio
ROWS = f"{json.dumps({'prompt': 'How many loaves?', 'completion': 'Twelve.'})}\n" * 3
JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def file_id(services: Services) -> str:
    services.files.add("file-rows", ROWS.encode(), "rows.jsonl")
    return "file-rows"


async def create(client: httpx.AsyncClient, file_id: str, **more: Any) -> dict[str, Any]:
    body = {"model": "tiny", "training_file": file_id, **more}
    answer = await client.post(JOBS, json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture
async def run(client: httpx.AsyncClient, services: Services, file_id: str) -> RunFolder:
    return find_run(services.layout, (await create(client, file_id))["id"])


@pytest.fixture
async def live(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    """The API on a real socket, because an in-process transport waits for a stream's end."""
    config = uvicorn.Config(build_http(services, None), port=0, log_level="warning")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:
            await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        yield client
    server.should_exit = True
    await serving


# States


async def test_job_is_paused_and_resumed(client: httpx.AsyncClient, run: RunFolder) -> None:
    paused = (await client.post(f"{JOBS}/{run.path.name}/pause")).json()
    resumed = (await client.post(f"{JOBS}/{run.path.name}/resume")).json()
    assert (paused["status"], resumed["status"]) == ("paused", "queued")
    refused = await client.post(f"{JOBS}/{run.path.name}/resume")
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "job_not_paused"


async def test_only_ended_job_is_deleted(client: httpx.AsyncClient, run: RunFolder) -> None:
    url = f"{JOBS}/{run.path.name}"
    assert (await client.delete(url)).status_code == 409
    await client.post(f"{url}/cancel")
    deleted = await client.delete(url)
    assert deleted.json() == {"id": run.path.name, "object": "fine_tuning.job", "deleted": True}
    assert (await client.get(url)).status_code == 404
    assert (await client.delete(url)).status_code == 404


@pytest.mark.parametrize("change", ["cancel", "pause", "resume", "clone"])
async def test_change_of_unknown_job_gets_404(client: httpx.AsyncClient, change: str) -> None:
    answer = await client.post(f"{JOBS}/ftjob-none/{change}", json={})
    assert answer.status_code == 404
    assert "'ftjob-none'" in answer.json()["error"]["message"]


async def test_clone_differs_only_in_changed_settings(
    client: httpx.AsyncClient, file_id: str
) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    first = await create(
        client, file_id, method=method, suffix="a", training={"weight_decay": 0.5, "seed": 3}
    )
    url = f"{JOBS}/{first['id']}/clone"
    same = (await client.post(url)).json()
    assert same["id"] != first["id"]
    assert same["training"] == first["training"]
    changes = {
        "suffix": "b",
        "training": {"seed": 4},
        "hyperparameters": {"n_epochs": 5, "learning_rate_multiplier": 2},
    }
    other = (await client.post(url, json=changes)).json()
    assert (other["training"]["seed"], other["training"]["weight_decay"]) == (4, 0.5)
    assert (other["hyperparameters"]["n_epochs"], other["user_provided_suffix"]) == (5, "b")
    assert other["training"]["learning_rate"] == 2 * first["training"]["learning_rate"]
    FineTuningJob.model_validate(other)
    unchanged = (await client.post(url, json={"suffix": None})).json()
    assert unchanged["user_provided_suffix"] == "a"
    refused = await client.post(url, json={"sufix": "c"})
    assert refused.status_code == 400
    assert "sufix" in refused.json()["error"]["message"]


async def test_clone_keeps_the_method(
    client: httpx.AsyncClient, layout: StorageLayout, file_id: str
) -> None:
    pair = {"prompt": "one", "chosen": "two", "rejected": "three"}
    FileStore(layout).add("file-pairs", f"{json.dumps(pair)}\n".encode(), "pairs.jsonl")
    asked = {"n_epochs": 2, "beta": 0.3}
    method = {"type": "dpo", "dpo": {"hyperparameters": asked}}
    first = await create(client, "file-pairs", method=method)
    url = f"{JOBS}/{first['id']}/clone"
    same = (await client.post(url)).json()
    assert same["training"] == first["training"]
    assert same["method"] == first["method"]
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.4}}}
    other = (await client.post(url, json={"method": method})).json()
    found = other["method"]["dpo"]["hyperparameters"]
    assert (found["n_epochs"], found["beta"]) == (2, 0.4)
    other = (await client.post(url, json={"hyperparameters": {"n_epochs": 3}})).json()
    found = other["method"]["dpo"]["hyperparameters"]
    assert (found["n_epochs"], found["beta"]) == (3, 0.3)
    body = {"training": {"task": "causal_lm"}, "training_file": file_id}
    other = (await client.post(url, json=body)).json()
    assert (other["method"]["type"], other["training"]["epochs"]) == ("supervised", 2)
    own = {"task": "preference", "task_settings": {"loss": "ipo", "beta": 0.2}}
    first = await create(client, "file-pairs", training=own)
    url = f"{JOBS}/{first['id']}/clone"
    other = (await client.post(url, json={"method": method})).json()
    assert other["training"]["task_settings"] == {"loss": "ipo", "beta": 0.4}


async def test_empty_integrations_list_is_accepted(client: httpx.AsyncClient, file_id: str) -> None:
    assert (await create(client, file_id, integrations=[]))["integrations"] is None


async def test_openai_parameters_of_clone_override_training_settings(
    client: httpx.AsyncClient, file_id: str
) -> None:
    training = {"epochs": 4, "seed": 3, "micro_batch_size": 2}
    first = await create(client, file_id, training=training)
    url = f"{JOBS}/{first['id']}/clone"
    changes = {"hyperparameters": {"n_epochs": 8}, "seed": 9}
    changed = (await client.post(url, json=changes)).json()
    kept = {name: changed["training"][name] for name in training}
    assert kept == {"epochs": 8, "seed": 9, "micro_batch_size": 2}
    again = (await client.post(f"{JOBS}/{changed['id']}/clone")).json()
    assert again["training"] == changed["training"]


@pytest.mark.parametrize("training", ["x", [1], 5])
async def test_clone_with_invalid_training_settings_is_refused(
    client: httpx.AsyncClient, file_id: str, training: Any
) -> None:
    first = await create(client, file_id)
    answer = await client.post(f"{JOBS}/{first['id']}/clone", json={"training": training})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "training"


# Lists


async def test_unreadable_job_does_not_hide_other_jobs(
    client: httpx.AsyncClient, file_id: str, layout: StorageLayout
) -> None:
    whole, with_invalid_spec, without_spec = [
        (await create(client, file_id))["id"] for _ in range(3)
    ]
    (layout.run(with_invalid_spec) / "spec.json").write_text('{"bogus": 1}')
    (layout.run(without_spec) / "spec.json").unlink()
    listed = {job["id"]: job["error"] for job in (await client.get(JOBS)).json()["data"]}
    assert list(listed) == [without_spec, with_invalid_spec, whole]
    assert listed[whole] is None
    for job_id, reason in (
        (with_invalid_spec, "base_model is missing"),
        (without_spec, "No such file"),
    ):
        assert listed[job_id]["code"] == "settings_unreadable"
        assert reason in listed[job_id]["message"]
        job = (await client.get(f"{JOBS}/{job_id}")).json()
        assert job["error"] == listed[job_id]
        assert job["status"] == "queued"


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_page_continues_after_deleted_entry(client: httpx.AsyncClient, order: str) -> None:
    for _ in range(5):
        file, fields = {"file": ("rows.jsonl", ROWS.encode())}, {"purpose": "fine-tune"}
        (await client.post("/v1/files", files=file, data=fields)).raise_for_status()
    ids = [f["id"] for f in (await client.get("/v1/files", params={"order": order})).json()["data"]]
    seen: list[str] = []
    while True:
        cursor = {"after": seen[-1]} if seen else {}
        query: dict[str, Any] = {"limit": 2, "order": order, **cursor}
        page = (await client.get("/v1/files", params=query)).json()
        for file in page["data"]:
            seen.append(file["id"])
            await client.delete(f"/v1/files/{file['id']}")
        if not page["has_more"]:
            break
    assert seen == ids


async def test_invalid_query_error_names_parameter(client: httpx.AsyncClient) -> None:
    for query, name in (({"limit": "many"}, "limit"), ({"after": "none"}, "after")):
        answer = await client.get(JOBS, params=query)
        assert answer.json()["error"]["param"] == name


async def test_jobs_are_filtered_by_metadata(client: httpx.AsyncClient, file_id: str) -> None:
    ovens = await create(client, file_id, metadata={"team": "ovens", "try": "1"})
    await create(client, file_id, metadata={"team": "shop"})
    await create(client, file_id)
    listed = (await client.get(JOBS, params={"metadata[team]": "ovens"})).json()["data"]
    assert [job["id"] for job in listed] == [ovens["id"]]
    none = await client.get(JOBS, params={"metadata[team]": "ovens", "metadata[try]": "2"})
    assert none.json()["data"] == []


async def test_jobs_are_filtered_by_status_and_text(
    client: httpx.AsyncClient, file_id: str, layout: StorageLayout
) -> None:
    ovens = await create(client, file_id, suffix="Ovens")
    shop = await create(client, file_id, suffix="shop")
    find_run(layout, shop["id"]).update_record(status="failed")

    async def ask(**params: str) -> list[str]:
        listed = (await client.get(JOBS, params=params)).json()["data"]
        return [job["id"] for job in listed]

    assert await ask(status="failed") == [shop["id"]]
    assert await ask(status="paused") == []
    assert await ask(search="oVEN") == [ovens["id"]]
    assert await ask(search="rows.jsonl") == [shop["id"], ovens["id"]]
    assert await ask(search="rows.jsonl", after=shop["id"]) == [ovens["id"]]
    assert await ask(search="ovens", status="failed") == []
    refused = await client.get(JOBS, params={"status": "done"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "status"


async def test_files_are_paged_ordered_and_filtered_by_purpose(
    client: httpx.AsyncClient, services: Services
) -> None:
    for name in ("file-a", "file-b", "file-c"):
        services.files.add(name, ROWS.encode(), "rows.jsonl")
    services.files.add("file-d", b"step\n", "step_metrics.csv", "fine-tune-results")

    async def ask(**params: Any) -> list[str]:
        page = (await client.get("/v1/files", params=params)).json()
        return [file["id"] for file in page["data"]]

    assert await ask(purpose="fine-tune-results") == ["file-d"]
    newest = await ask(purpose="fine-tune")
    assert sorted(newest) == ["file-a", "file-b", "file-c"]
    assert await ask(purpose="fine-tune", order="asc") == newest[::-1]
    assert await ask(purpose="fine-tune", limit=2) == newest[:2]
    assert await ask(purpose="fine-tune", limit=2, after=newest[1]) == newest[2:]
    assert (await client.get("/v1/files", params={"after": "file-none"})).status_code == 404


async def test_job_keeps_name_of_deleted_training_file(
    client: httpx.AsyncClient, services: Services
) -> None:
    """The job keeps the name of a deleted file, so that clients need not list all files."""
    services.files.add("file-rows", ROWS.encode(), "Brötchen & more.jsonl")
    created = await create(client, "file-rows")
    await client.post(f"{JOBS}/{created['id']}/cancel")
    (await client.delete("/v1/files/file-rows")).raise_for_status()
    listed = (await client.get(JOBS)).json()["data"][0]
    shown = (await client.get(f"{JOBS}/{created['id']}")).json()
    for job in (created, listed, shown):
        assert job["training_filename"] == "Brötchen & more.jsonl"


async def test_file_needed_by_job_is_not_deleted(
    client: httpx.AsyncClient, services: Services, file_id: str
) -> None:
    services.files.add("file-more", ROWS.encode(), "more.jsonl")
    job = await create(client, file_id, validation_file="file-more")
    for needed in (file_id, "file-more"):
        assert (await client.delete(f"/v1/files/{needed}")).status_code == 409
    await client.post(f"{JOBS}/{job['id']}/cancel")
    for free in (file_id, "file-more"):
        assert (await client.delete(f"/v1/files/{free}")).status_code == 200


# Streams


async def read_events(
    client: httpx.AsyncClient,
    url: str,
    last: str | None = None,
    stop_after: int | None = None,
    events: list[dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Read a stream of events to its end, or until `stop_after` events; append them to `events`."""
    headers = {} if last is None else {"last-event-id": last}
    events = [] if events is None else events
    async with client.stream("GET", url, params={"stream": True}, headers=headers) as answer:
        if answer.status_code == 204:
            return []
        assert answer.headers["content-type"].startswith("text/event-stream")
        ident = ""
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                ident = line.removeprefix("id: ")
            elif line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                assert events[-1]["id"] == ident
                if len(events) == stop_after:
                    break
    return events


async def test_events_are_streamed_until_job_ends(
    live: httpx.AsyncClient, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.http_api.run_streams.POLL_S", 0.01)
    url = f"{JOBS}/{run.path.name}/events"
    events: list[dict[str, Any]] = []
    reading = asyncio.create_task(read_events(live, url, events=events))
    for number in range(5):
        await wait_for(lambda: len(events) == len(run.events.read()), 10, "the event is streamed")
        run.events.add(f"event {number}")
    run.update_record(status="succeeded")
    await reading
    assert [FineTuningJobEvent.model_validate(event).message for event in events][-5:] == [
        f"event {number}" for number in range(5)
    ]
    assert [event["id"] for event in events] == [event["id"] for event in run.events.read()]
    assert await read_events(live, url, last=events[-1]["id"]) == []


async def test_interrupted_event_stream_loses_and_repeats_no_event(
    live: httpx.AsyncClient, run: RunFolder
) -> None:
    url = f"{JOBS}/{run.path.name}/events"
    chance = random.Random(7)
    stopped = asyncio.Event()

    async def simulate() -> None:
        for number in range(300):
            run.events.add(f"event {number}")
            await asyncio.sleep(chance.uniform(0, 0.01))
        await stopped.wait()
        run.update_record(status="succeeded")

    simulation = asyncio.create_task(simulate())
    seen: list[dict[str, Any]] = []
    for _ in range(20):
        last = seen[-1]["id"] if seen else None
        with suppress(TimeoutError):
            async with asyncio.timeout(3):
                seen += await read_events(live, url, last, stop_after=chance.randint(1, 15))
    stopped.set()
    await simulation
    seen += await read_events(live, url, seen[-1]["id"])
    assert [event["id"] for event in seen] == [event["id"] for event in run.events.read()]


async def test_event_stream_with_unknown_last_event_id_gets_404(
    client: httpx.AsyncClient, run: RunFolder
) -> None:
    url = f"{JOBS}/{run.path.name}/events"
    headers = {"accept": "text/event-stream", "last-event-id": "ftevent-other-000001"}
    answer = await client.get(url, headers=headers)
    assert answer.status_code == 404


async def test_log_is_followed_from_offset(
    live: httpx.AsyncClient, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.http_api.run_streams.POLL_S", 0.01)
    url = f"{JOBS}/{run.path.name}/logs"
    assert (await live.get(url)).text == ""
    run.log_file.write_text("one\ntwo\n")
    tail = await live.get(url, params={"tail": 4})
    assert (tail.text, tail.headers["x-log-offset"]) == ("two\n", "4")
    received = bytearray()

    async def follow() -> None:
        async with live.stream("GET", url, params={"offset": 4, "follow": True}) as answer:
            async for piece in answer.aiter_bytes():
                received.extend(piece)

    reading = asyncio.create_task(follow())
    for line in (b"three\n", b"four\n"):
        await wait_for(lambda: received == run.log_file.read_bytes()[4:], 10, "the log is streamed")
        with run.log_file.open("ab") as log:
            log.write(line)
    run.update_record(status="failed")
    await reading
    assert received == b"two\nthree\nfour\n"


async def test_log_read_at_any_offset_starts_at_character_boundary(
    client: httpx.AsyncClient, run: RunFolder
) -> None:
    url = f"{JOBS}/{run.path.name}/logs"
    log = "Brötchen für 12 €\n".encode()
    run.log_file.write_bytes(log)
    for tail in range(len(log) + 2):
        answer = await client.get(url, params={"tail": tail})
        begin = int(answer.headers["x-log-offset"])
        assert answer.content == log[begin:]
        assert answer.text == log[begin:].decode()
        assert len(answer.content) <= tail
    run.log_file.write_bytes(log * 2)
    assert (await client.get(url, params={"offset": len(log)})).content == log


async def test_log_is_searched_from_its_end(client: httpx.AsyncClient, run: RunFolder) -> None:
    url = f"{JOBS}/{run.path.name}/logs"
    lines = [f"step {number}: Brötchen" if number % 3 else "other" for number in range(9)]
    run.log_file.write_text("\n".join(lines))  # the last line has not ended yet
    every = [line for line in lines if line != "other"]
    assert (await client.get(url, params={"search": "BRÖT"})).text.splitlines() == every
    tail = len(f"{every[-1]}\n{every[-2]}\n".encode())
    some = await client.get(url, params={"search": "step", "tail": tail + 3})
    assert some.text.splitlines() == every[-2:]
    assert (await client.get(url, params={"search": "nowhere"})).text == ""
    last = await client.get(url, params={"search": "step", "tail": 5})
    assert last.text == f"{every[-1]}\n"[-5:], "one line that is too long hides all that was found"
    both = await client.get(url, params={"search": "step", "offset": 0})
    assert both.json()["error"]["param"] == "search"


async def test_event_with_line_separators_is_sent_as_one_event(
    live: httpx.AsyncClient, run: RunFolder
) -> None:
    message = "one\u2028two\u2029three\x85four\nfive"
    run.events.add(message)
    run.update_record(status="succeeded")
    events = await read_events(live, f"{JOBS}/{run.path.name}/events")
    assert events[-1]["message"] == message


async def test_metrics_are_read_after_given_step(client: httpx.AsyncClient, run: RunFolder) -> None:
    for step in (1, 2, 3):
        run.metrics.add({"step": step})
    url = f"{JOBS}/{run.path.name}/metrics"
    data = (await client.get(url, params={"after_step": 1})).json()["data"]
    assert [line["step"] for line in data] == [2, 3]


async def test_newest_evaluations_are_listed_first(
    client: httpx.AsyncClient, run: RunFolder
) -> None:
    matrix = ConfusionMatrix(("no", "yes"), ((3, 1), (0, 2)))
    for step in (1, 2, 3):
        run.evaluations.add(step, 0.5, {"accuracy": 0.75}, matrix)
    url = f"{JOBS}/{run.path.name}/evaluations"
    data = (await client.get(url, params={"limit": 2})).json()["data"]
    assert [one["step"] for one in data] == [3, 2]
    assert data[0]["metrics"] == {"accuracy": 0.75}
    assert data[0]["confusion_matrix"] == {"labels": ["no", "yes"], "counts": [[3, 1], [0, 2]]}


@pytest.fixture
def mix(services: Services, file_id: str) -> list[dict[str, Any]]:
    services.files.add("file-more", ROWS.replace("Twelve", "Ten").encode(), "more.jsonl")
    return [{"file": file_id, "weight": 2}, {"file": "file-more"}]


async def test_job_trains_on_several_files_by_weight(
    client: httpx.AsyncClient, services: Services, file_id: str, mix: list[dict[str, Any]]
) -> None:
    job = await create(client, file_id, training_files=mix, validation_file="file-more")
    assert job["training_file"] == file_id
    assert job["training_files"] == [mix[0], {"file": "file-more", "weight": 1.0}]
    assert not {"train_file", "train_files", "validation_file"} & job["training"].keys()
    assert str(services.layout.root) not in json.dumps(job)
    FineTuningJob.model_validate(job)
    summary = find_run(services.layout, job["id"]).read_data_summary()
    assert (summary["num_rows"], summary["validation"]["num_rows"]) == (2 * 3 + 3, 3)
    assert [(source["name"], source["num_rows"]) for source in summary["sources"]] == [
        ("rows.jsonl", 6),
        ("more.jsonl", 3),
    ]
    refused = await client.delete("/v1/files/file-more")
    assert refused.status_code == 409, "a file that a job needs was deleted"
    clone = (await client.post(f"{JOBS}/{job['id']}/clone", json={})).json()
    assert clone["training_files"] == job["training_files"]
    other = await client.post(f"{JOBS}/{job['id']}/clone", json={"training_file": "file-more"})
    assert (other.json()["training_file"], other.json()["training_files"]) == ("file-more", None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"training_files": [{"file": "file-more"}]},
            "training_file is 'file-rows', which is none",
        ),
        ({"training_files": [{"file": "file-rows"}] * 2}, "training_files names a file twice"),
        ({"training_files": []}, "training_files"),
        ({"training_files": [{"file": "file-rows"}] * 65}, "expected at most 64 training files"),
        ({"training_files": [{"file": "file-rows", "weight": 0}]}, "weight"),
        ({"training_files": [{"file": "file-rows"}, {"file": "/etc/passwd"}]}, "no file"),
        ({"training_files": [{"file": "file-rows"}, {"file": "file-*"}]}, "no file"),
        ({"training": {"train_files": [{"file": "/etc/passwd"}]}}, "cannot be set in 'training'"),
        ({"training": {"max_steps": 2, "warmup_steps": 2}}, "warmup_steps is 2, expected fewer"),
    ],
)
async def test_invalid_mix_of_files_is_refused(
    client: httpx.AsyncClient, mix: list[dict[str, Any]], change: dict[str, Any], message: str
) -> None:
    answer = await client.post(JOBS, json={"model": "tiny", "training_file": "file-rows", **change})
    assert answer.status_code in (400, 404), answer.text
    assert message in answer.json()["error"]["message"]


async def test_estimate_creates_nothing_and_is_refused_as_the_job(
    client: httpx.AsyncClient, services: Services, file_id: str
) -> None:
    body = {"model": "tiny", "training_file": file_id, "training": {"max_steps": 2}}
    answer = await client.post(f"{JOBS}/estimate", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["model"], found["num_rows"], found["num_steps"]) == ("tiny", 3, 2)
    assert not list(services.layout.runs.iterdir())
    faulty = {**body, "training": {"learning_rate": 0}}
    errors = [
        (await client.post(path, json=faulty)).json()["error"]
        for path in (JOBS, f"{JOBS}/estimate")
    ]
    assert errors[0] == errors[1]
    assert errors[0]["param"] == "learning_rate"


async def test_settings_limit_steps_and_rows(
    client: httpx.AsyncClient, services: Services, file_id: str
) -> None:
    settings = {"max_rows": 2, "max_steps": 7, "warmup_steps": 3, "text_rows": "paragraph"}
    job = await create(client, file_id, training=settings)
    assert settings.items() <= job["training"].items()
    assert find_run(services.layout, job["id"]).read_data_summary()["num_rows"] == 2
    defaults = (await client.get("/v1/fine_tuning/defaults?model=tiny")).json()
    assert settings.keys() <= defaults["schema"].keys()
    assert "train_files" not in defaults["schema"]
