"""Tests written from OpenAI's documentation of its fine-tuning API; only `base_url` is ours.

The status `paused` is the only addition: OpenAI documents the calls, but no status for them.
"""

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import openai
import pytest
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from tests.e2e.conftest import ROOT, Application
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

STATUSES = {*get_args(FineTuningJob.model_fields["status"].annotation), "paused"}
MODEL = "tuneserve-demo"
TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def client(application: Application) -> openai.OpenAI:
    return application.client


@pytest.fixture(scope="module")
def rows() -> list[str]:
    return (ROOT / "examples" / "handbook" / "train.jsonl").read_text().splitlines()


@pytest.fixture(scope="module")
def training_file(client: openai.OpenAI, rows: list[str]) -> str:
    content = "\n".join(rows[:150]).encode()
    file = client.files.create(file=("mydata.jsonl", content), purpose="fine-tune")
    assert (file.object, file.purpose, file.filename) == ("file", "fine-tune", "mydata.jsonl")
    assert file.bytes == len(content)
    return file.id


@pytest.fixture(scope="module")
def validation_file(client: openai.OpenAI, rows: list[str]) -> str:
    content = "\n".join(rows[150:170]).encode()
    return client.files.create(file=("check.jsonl", content), purpose="fine-tune").id


@pytest.fixture(scope="module")
def job(client: openai.OpenAI, training_file: str, validation_file: str) -> FineTuningJob:
    """A finished job with the settings of the guide."""
    job = client.fine_tuning.jobs.create(
        training_file=training_file,
        validation_file=validation_file,
        model=MODEL,
        suffix="api",
        seed=105,
        metadata={"project": "guide"},
        method={
            "type": "supervised",
            "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": "auto"}},
        },
    )
    assert job.object == "fine_tuning.job"
    assert job.status in {"validating_files", "queued"}
    assert (job.fine_tuned_model, job.finished_at, job.trained_tokens) == (None, None, None)
    return wait_for_end(client, job.id)


def wait_for_end(client: openai.OpenAI, job_id: str) -> FineTuningJob:
    """Return a job once it has succeeded."""

    def retrieve() -> FineTuningJob | None:
        seen = client.fine_tuning.jobs.retrieve(job_id)
        assert seen.status in STATUSES
        return seen if seen.status in {"succeeded", "failed", "cancelled"} else None

    ended: FineTuningJob = wait_until(retrieve, TIMEOUT_S, "the job ends")
    assert ended.status == "succeeded", ended.error
    return ended


def test_file_is_processed_listed_and_downloaded(
    client: openai.OpenAI, training_file: str, validation_file: str, rows: list[str]
) -> None:
    file = client.files.wait_for_processing(training_file, poll_interval=0.2)
    assert file.status == "processed"
    assert client.files.content(training_file).text == "\n".join(rows[:150])
    first = client.files.list(limit=1, order="desc", purpose="fine-tune")
    assert len(first.data) == 1
    assert first.has_next_page()
    listed = [each.id for each in client.files.list(limit=1, purpose="fine-tune")]
    assert {training_file, validation_file} <= set(listed)
    assert len(listed) == len(set(listed))
    oldest = [each.id for each in client.files.list(order="asc", purpose="fine-tune")]
    assert oldest == listed[::-1]


def test_job_has_documented_fields(
    client: openai.OpenAI, job: FineTuningJob, training_file: str, validation_file: str
) -> None:
    FineTuningJob.model_validate_json(job.to_json(), strict=False)
    assert (job.training_file, job.validation_file) == (training_file, validation_file)
    assert (job.model, job.seed, job.metadata) == (MODEL, 105, {"project": "guide"})
    assert job.method is not None
    assert job.method.supervised is not None
    assert job.method.supervised.hyperparameters is not None
    assert job.method.supervised.hyperparameters.n_epochs == 3
    assert job.hyperparameters.n_epochs == 3
    assert job.fine_tuned_model is not None
    assert "api" in job.fine_tuned_model
    assert job.error is None
    assert (job.trained_tokens or 0) > 0
    assert job.finished_at is not None
    assert job.finished_at >= job.created_at
    assert job.estimated_finish is None


def test_result_file_has_metrics_of_each_step(client: openai.OpenAI, job: FineTuningJob) -> None:
    (result,) = job.result_files
    file = client.files.retrieve(result)
    assert (file.purpose, file.filename) == ("fine-tune-results", "step_metrics.csv")
    lines = list(csv.DictReader(io.StringIO(client.files.content(result).text)))
    assert [int(line["step"]) for line in lines] == list(range(1, len(lines) + 1))
    assert float(lines[-1]["train_loss"]) < float(lines[0]["train_loss"])
    assert any(line["valid_loss"] for line in lines)


def test_events_are_paged_newest_first(client: openai.OpenAI, job: FineTuningJob) -> None:
    page = client.fine_tuning.jobs.list_events(fine_tuning_job_id=job.id, limit=2)
    assert len(page.data) == 2
    assert page.has_more
    events = list(client.fine_tuning.jobs.list_events(fine_tuning_job_id=job.id, limit=3))
    for event in events:
        FineTuningJobEvent.model_validate_json(event.to_json())
    assert len({event.id for event in events}) == len(events) > 5
    times = [event.created_at for event in events]
    assert times == sorted(times, reverse=True)
    later = client.fine_tuning.jobs.list_events(job.id, after=events[0].id, limit=100)
    assert [event.id for event in later.data] == [event.id for event in events[1:]]


def test_checkpoints_have_metrics_and_serve_chats(
    client: openai.OpenAI, job: FineTuningJob
) -> None:
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(job.id, limit=1))
    assert len(checkpoints) >= 2
    steps = [checkpoint.step_number for checkpoint in checkpoints]
    assert steps == sorted(steps, reverse=True)
    for checkpoint in checkpoints:
        FineTuningJobCheckpoint.model_validate_json(checkpoint.to_json())
        assert checkpoint.object == "fine_tuning.job.checkpoint"
        assert checkpoint.fine_tuning_job_id == job.id
        assert checkpoint.metrics.step == checkpoint.step_number
        assert checkpoint.metrics.train_loss is not None
        assert checkpoint.metrics.full_valid_loss is not None
    early = checkpoints[-1].fine_tuned_model_checkpoint
    answer = client.chat.completions.create(
        model=early, messages=[{"role": "user", "content": "Hello!"}], max_tokens=5
    )
    assert answer.model == early


def test_fine_tuned_model_completes_chat(client: openai.OpenAI, job: FineTuningJob) -> None:
    assert job.fine_tuned_model is not None
    answer = client.chat.completions.create(
        model=job.fine_tuned_model,
        messages=[
            {"role": "system", "content": "You answer in short."},
            {"role": "user", "content": "When does the workshop open?"},
        ],
    )
    assert answer.choices[0].message.content
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model


def test_tuned_model_is_evaluated_beside_its_base_model(
    client: openai.OpenAI, http: httpx.Client, job: FineTuningJob, rows: list[str]
) -> None:
    assert job.fine_tuned_model is not None
    models = [MODEL, job.fine_tuned_model]
    body = {"models": models, "job": job.id, "max_rows": 20, "max_tokens": 24}
    created = http.post("/v1/evaluations", json=body)
    assert created.status_code == 200, created.text
    path = f"/v1/evaluations/{created.json()['id']}"

    def get_ended() -> dict[str, Any] | None:
        seen: dict[str, Any] = http.get(path).json()
        return seen if seen["status"] not in ("queued", "running") else None

    ended = wait_until(get_ended, TIMEOUT_S, "the evaluation ends")
    assert (ended["status"], ended["num_rows"], ended["num_done"]) == ("succeeded", 20, 20), ended
    base, tuned = ended["models"]
    assert (base["num_failed"], tuned["num_failed"]) == (0, 0)
    assert tuned["perplexity"] < base["perplexity"]
    assert tuned["rouge_l"] > base["rouge_l"]
    # The training measured the loss of the same tokens.
    metrics = client.models.retrieve(job.fine_tuned_model).to_dict()["metrics"]
    assert isinstance(metrics, dict)
    assert tuned["perplexity"] == pytest.approx(math.exp(metrics["eval_loss"]), rel=0.01)
    found = http.get(f"{path}/rows", params={"limit": 5}).json()
    assert found["has_more"]
    for row, line in zip(found["data"], rows[150:155], strict=True):
        question, answer = json.loads(line)["messages"]
        assert (row["prompt"], row["expected"]) == (question["content"], answer["content"])
    first = found["data"][0]
    for model, evaluated in zip(models, first["answers"], strict=True):
        chat = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": first["prompt"]}],
            temperature=0,
            max_tokens=24,
        )
        assert evaluated["text"] == chat.choices[0].message.content
    assert http.delete(path).json()["deleted"]


@pytest.mark.long
def test_extended_job_takes_the_steps_of_a_longer_one(
    client: openai.OpenAI, http: httpx.Client, rows: list[str]
) -> None:
    content = "\n".join(rows[:60]).encode()
    file = client.files.create(file=("short.jsonl", content), purpose="fine-tune")

    def create(suffix: str, epochs: int) -> str:
        # The same learning rate at a step, however many steps follow.
        constant = {"lr_schedule": "constant", "warmup_ratio": 0}
        return client.fine_tuning.jobs.create(
            training_file=file.id,
            model=MODEL,
            suffix=suffix,
            seed=7,
            extra_body={"training": {"epochs": epochs, **constant}},
        ).id

    short, long = create("short", 1), create("long", 3)
    model_before = wait_for_end(client, short).fine_tuned_model
    path = f"/v1/fine_tuning/jobs/{short}/extend"
    refused = http.post(path, json={"epochs": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "epochs")
    assert "ended with epochs 1: expected at least 2" in refused.json()["error"]["message"]
    created = http.post(path, json={"epochs": 3, "suffix": "longer"})
    assert created.status_code == 200, created.text
    assert created.json()["extended_from"] == short
    extended = created.json()["id"]

    def has_copied() -> bool:
        return client.fine_tuning.jobs.retrieve(extended).status != "validating_files"

    wait_until(has_copied, TIMEOUT_S, "the checkpoints are copied")
    assert http.delete(f"/v1/fine_tuning/jobs/{short}").status_code == 200
    wait_for_end(client, long)
    ended = wait_for_end(client, extended)
    found, expected = (
        http.get(f"/v1/fine_tuning/jobs/{job_id}/metrics").json()["data"]
        for job_id in (extended, long)
    )
    assert len(found) > 5
    for name in ("step", "epoch", "loss", "learning_rate", "trained_tokens"):
        assert [line[name] for line in found] == [line[name] for line in expected], name
    messages = [event.message for event in client.fine_tuning.jobs.list_events(extended, limit=100)]
    resumed = [message for message in messages if message.startswith("Resuming after step")]
    assert resumed == [f"Resuming after step {len(found) // 3} of {len(found)}"]
    assert ended.fine_tuned_model is not None
    assert "longer" in ended.fine_tuned_model
    for model in (ended.fine_tuned_model, model_before):
        assert model is not None
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hello!"}], max_tokens=5
        )
        assert (answer.model, bool(answer.choices[0].message.content)) == (model, True)
    lineage = http.get(f"/v1/models/{ended.fine_tuned_model}/lineage").json()
    assert lineage["extended_from"] == short
    assert [end["model_id"] for end in lineage["extends"]] == [model_before]


@pytest.mark.long
def test_dpo_job_prefers_better_answers(client: openai.OpenAI) -> None:
    files = {}
    for name in ("train", "heldout"):
        lines = (ROOT / "examples" / "preference" / f"{name}.jsonl").read_text().splitlines()
        content = "\n".join(json.dumps(convert_pair(json.loads(line))) for line in lines).encode()
        files[name] = client.files.create(file=(f"{name}.jsonl", content), purpose="fine-tune").id
        checked = client.files.wait_for_processing(files[name], poll_interval=0.2)
        assert checked.status == "processed", checked.status_details
        assert checked.to_dict()["check"]["task"] == "preference"  # type: ignore[index]
    job = client.fine_tuning.jobs.create(
        training_file=files["train"],
        validation_file=files["heldout"],
        model=MODEL,
        suffix="friendly",
        method={"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 1}}},
    )
    assert job.method is not None
    assert job.method.dpo is not None
    assert job.method.dpo.hyperparameters is not None
    assert (job.method.type, job.method.supervised) == ("dpo", None)
    hyperparameters = job.method.dpo.hyperparameters
    assert (hyperparameters.beta, hyperparameters.n_epochs) == (0.2, 1)
    ended = wait_for_end(client, job.id)
    events = client.fine_tuning.jobs.list_events(job.id, limit=100).data
    measured = next(one.message for one in events if "reward_accuracy" in one.message)
    accuracy = float(measured.split("reward_accuracy ")[1].split(",")[0])
    print(measured)
    assert accuracy >= 0.9
    assert ended.fine_tuned_model is not None
    answer = client.chat.completions.create(
        model=ended.fine_tuned_model, messages=[{"role": "user", "content": "Hello!"}], max_tokens=9
    )
    assert answer.choices[0].message.content
    plain = client.files.create(
        file=("plain.jsonl", b'{"prompt": "a", "completion": "b"}'), purpose="fine-tune"
    )
    with pytest.raises(openai.BadRequestError, match="for task 'causal_lm'"):
        client.fine_tuning.jobs.create(training_file=plain.id, model=MODEL, method={"type": "dpo"})


def convert_pair(pair: dict[str, str]) -> dict[str, object]:
    """Convert a pair to OpenAI's format of preferences."""
    return {
        "input": {"messages": [{"role": "user", "content": pair["prompt"]}]},
        "preferred_output": [{"role": "assistant", "content": pair["chosen"]}],
        "non_preferred_output": [{"role": "assistant", "content": pair["rejected"]}],
    }


@pytest.fixture(scope="module")
def active_jobs(client: openai.OpenAI, training_file: str) -> Iterator[list[str]]:
    """One long-running job, and two queued jobs behind it."""
    made = [
        client.fine_tuning.jobs.create(
            training_file=training_file,
            model=MODEL,
            hyperparameters={"n_epochs": 500},
            metadata={"number": str(number)},
        ).id
        for number in range(3)
    ]
    yield made
    for job_id in made:
        if client.fine_tuning.jobs.retrieve(job_id).status not in ("cancelled", "failed"):
            client.fine_tuning.jobs.cancel(job_id)


def test_jobs_are_listed_in_pages(
    client: openai.OpenAI, job: FineTuningJob, active_jobs: list[str]
) -> None:
    newest = active_jobs[::-1]
    page = client.fine_tuning.jobs.list(limit=2)
    assert [each.id for each in page.data] == newest[:2]
    assert page.has_more
    after = client.fine_tuning.jobs.list(after=newest[1], limit=2)
    assert after.data[0].id == newest[2]
    everything = [each.id for each in client.fine_tuning.jobs.list(limit=2)]
    assert everything[:3] == newest
    assert job.id in everything
    assert len(everything) == len(set(everything))
    found = client.fine_tuning.jobs.list(metadata={"project": "guide"})
    assert job.id in [each.id for each in found.data]
    assert not set(active_jobs) & {each.id for each in found.data}


def test_job_is_paused_resumed_and_cancelled(client: openai.OpenAI, active_jobs: list[str]) -> None:
    first, second, third = active_jobs

    def has_status(job_id: str, status: str) -> bool:
        return client.fine_tuning.jobs.retrieve(job_id).status == status

    def count_steps() -> int:
        events = client.fine_tuning.jobs.list_events(first, limit=100)
        return sum(event.message.startswith("Epoch") for event in events)

    wait_until(lambda: has_status(first, "running") and count_steps(), TIMEOUT_S, "the job trains")
    assert client.fine_tuning.jobs.retrieve(first).estimated_finish is not None
    client.fine_tuning.jobs.pause(first)
    wait_until(lambda: has_status(first, "paused"), 60, "the job is paused")
    wait_until(lambda: has_status(second, "running"), TIMEOUT_S, "the next job runs")
    assert client.fine_tuning.jobs.resume(first).status == "queued"
    assert client.fine_tuning.jobs.cancel(second).status == "cancelled"
    assert client.fine_tuning.jobs.cancel(third).status == "cancelled"
    wait_until(lambda: has_status(first, "running"), TIMEOUT_S, "the job resumes")
    messages = [event.message for event in client.fine_tuning.jobs.list_events(first, limit=100)]
    assert "Paused; it continues from its checkpoint when it is resumed" in messages
    wait_until(
        lambda: any(
            event.message.startswith("Resuming after step")
            for event in client.fine_tuning.jobs.list_events(first, limit=100)
        ),
        TIMEOUT_S,
        "the job resumes from its checkpoint",
    )
    assert client.fine_tuning.jobs.cancel(first).status == "cancelled"
    num_events = len(client.fine_tuning.jobs.list_events(first, limit=100).data)
    assert client.fine_tuning.jobs.resume(first).status == "queued"  # undo the cancellation
    wait_until(
        lambda: any(
            event.message.startswith("Resuming after step")
            for event in client.fine_tuning.jobs.list_events(first, limit=100).data[:-num_events]
        ),
        TIMEOUT_S,
        "the cancelled job resumes",
    )
    assert client.fine_tuning.jobs.cancel(first).status == "cancelled"


def test_errors_raise_exceptions_of_openai_client(
    application: Application, client: openai.OpenAI, job: FineTuningJob, training_file: str
) -> None:
    jobs = client.fine_tuning.jobs
    with pytest.raises(openai.NotFoundError, match="'ftjob-abc123'"):
        jobs.retrieve("ftjob-abc123")
    with pytest.raises(openai.NotFoundError, match="'file-abc123'"):
        jobs.create(training_file="file-abc123", model=MODEL)
    with pytest.raises(openai.NotFoundError, match="'gpt-4o-mini'"):
        jobs.create(training_file=training_file, model="gpt-4o-mini")
    with pytest.raises(openai.BadRequestError, match="n_epochs") as bad:
        jobs.create(training_file=training_file, model=MODEL, hyperparameters={"n_epochs": "x"})  # type: ignore[arg-type]
    assert (bad.value.status_code, bad.value.type) == (400, "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="suffix"):
        jobs.create(training_file=training_file, model=MODEL, suffix="x" * 65)
    with pytest.raises(openai.BadRequestError, match="workers"):
        jobs.create(
            training_file=training_file,
            model=MODEL,
            extra_body={"training": {"num_workers": 64}},
        )
    with pytest.raises(openai.ConflictError, match="has succeeded already"):
        jobs.cancel(job.id)
    with pytest.raises(openai.ConflictError, match="has succeeded already"):
        jobs.pause(job.id)
    with pytest.raises(openai.BadRequestError, match="purpose is 'batch'"):
        client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    with pytest.raises(openai.NotFoundError):
        client.files.delete("file-abc123")
    bad_rows = json.dumps({"messages": [{"role": "assistant"}]}).encode()
    file = client.files.create(file=("bad.jsonl", bad_rows), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="line 1") as refused:
        jobs.create(training_file=file.id, model=MODEL)
    assert (refused.value.code, refused.value.param) == ("invalid_training_file", "training_file")
    seen = client.files.wait_for_processing(file.id, poll_interval=0.2)
    assert seen.status == "error"
    assert "line 1" in (seen.status_details or "")
    assert client.files.delete(file.id).deleted
    unreachable = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
    with unreachable, pytest.raises(openai.APIConnectionError):
        unreachable.fine_tuning.jobs.list()


def test_file_of_active_job_cannot_be_deleted(
    client: openai.OpenAI, active_jobs: list[str], training_file: str
) -> None:
    started = client.fine_tuning.jobs.create(
        training_file=training_file, model=MODEL, hyperparameters={"n_epochs": 500}
    )
    with pytest.raises(openai.ConflictError, match="still needs"):
        client.files.delete(training_file)
    client.fine_tuning.jobs.cancel(started.id)
