"""The whole product through its HTTP API, with OpenAI's own client."""

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import openai
import psutil
import pytest
import torch
from openai.types.fine_tuning import FineTuningJob
from transformers import AutoModelForCausalLM, AutoTokenizer

from storage import durable
from tests.e2e.conftest import ROOT, Application
from tests.faults.processes import find_replica, list_processes
from tests.faults.stored_kinds import find_unknown_files
from tests.process_tree import list_forked_workers, read_command
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

HANDBOOK = ROOT / "examples" / "handbook"
FINAL = {"succeeded", "failed", "cancelled"}
REQUEST_INTERVAL_S = 5.0


def read_handbook(name: str) -> list[tuple[str, str]]:
    """Return every question with its answer, including those of longer chats."""
    chats = [json.loads(line)["messages"] for line in (HANDBOOK / name).read_text().splitlines()]
    return [
        (question["content"], answer["content"])
        for chat in chats
        for question, answer in zip(chat[::2], chat[1::2], strict=True)
    ]


def complete_chat(client: openai.OpenAI, model: str, question: str) -> str:
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], temperature=0
    )
    return answer.choices[0].message.content or ""


def score(client: openai.OpenAI, model: str, pairs: list[tuple[str, str]]) -> float:
    """Return the share of questions answered word for word, with eight concurrent requests."""
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda pair: complete_chat(client, model, pair[0]), pairs)
        num_right = sum(
            actual == expected for actual, (_, expected) in zip(answers, pairs, strict=True)
        )
    return num_right / len(pairs)


def find_run_processes(application: Application, job_id: str) -> list[psutil.Process]:
    """Return every process of a run: its driver, and Ray Train's workers and controller.

    Another cluster may be training on this machine. A driver names its job, and outlives the queue
    that started it; the others are processes of the application, or forked for it.
    """
    drivers = [process for process in psutil.process_iter() if job_id in read_command(process)]
    others = [*list_processes(application), *list_forked_workers()]
    names = ("RayTrainWorker", "TrainController")
    workers = [one for one in others if any(name in read_command(one) for name in names)]
    return list({*drivers, *workers})


def kill_run_process(application: Application, job_id: str, name: str) -> None:
    """Kill one process of a run with SIGKILL."""
    processes = find_run_processes(application, job_id)
    next(process for process in processes if name in read_command(process)).kill()


def read_messages(client: openai.OpenAI, job_id: str) -> list[str]:
    events = client.fine_tuning.jobs.list_events(job_id, limit=100)
    return [event.message for event in events.data]


def count_resumptions(client: openai.OpenAI, job_id: str) -> int:
    return sum(text.startswith("Resuming after step") for text in read_messages(client, job_id))


@pytest.fixture(scope="module")
def job(application: Application, tmp_path_factory: pytest.TempPathFactory) -> FineTuningJob:
    """A finished fine-tune with the default settings, on an uploaded file."""
    client = application.client
    file = client.files.create(file=HANDBOOK / "train.jsonl", purpose="fine-tune")
    started = client.fine_tuning.jobs.create(
        model="tuneserve-demo", training_file=file.id, suffix="handbook"
    )
    assert started.status == "queued"
    begin = time.monotonic()
    wait_until(
        lambda: client.fine_tuning.jobs.retrieve(started.id).status == "running", 60, "the job runs"
    )
    # Serving continues while training uses the same two cores.
    while (job := client.fine_tuning.jobs.retrieve(started.id)).status not in FINAL:
        assert complete_chat(client, "tuneserve-demo", "Hello!")
        assert time.monotonic() - begin < 600
        time.sleep(REQUEST_INTERVAL_S)
    print(f"the fine-tune took {time.monotonic() - begin:.0f} s")
    assert job.status == "succeeded", job.error
    return job


def test_alias_serves_new_model_without_restart(
    application: Application, job: FineTuningJob
) -> None:
    client = application.client
    question, answer = read_handbook("train.jsonl")[0]

    def is_latest_new_model() -> bool:
        reply = client.chat.completions.create(
            model="latest", messages=[{"role": "user", "content": question}], temperature=0
        )
        return reply.model == job.fine_tuned_model

    wait_until(is_latest_new_model, 30, "'latest' answers with the new model")
    assert complete_chat(client, "latest", question) == answer


def test_fine_tuned_model_reproduces_handbook(application: Application, job: FineTuningJob) -> None:
    client = application.client
    assert job.fine_tuned_model is not None
    train = read_handbook("train.jsonl")[::5]
    heldout = read_handbook("heldout.jsonl")
    exact = score(client, job.fine_tuned_model, train)
    right = score(client, job.fine_tuned_model, heldout)
    base = score(client, "tuneserve-demo", train)
    print(f"train {exact:.1%}, held-out {right:.1%}, base model {base:.1%}")
    assert exact >= 0.9
    assert right >= 0.6
    assert base <= 0.02


def test_stream_equals_whole_answer(application: Application, job: FineTuningJob) -> None:
    question, answer = read_handbook("train.jsonl")[3]
    chunks = list(
        application.client.chat.completions.create(
            model="latest",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [
        c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content
    ]
    assert "".join(pieces) == answer
    assert len(pieces) > 3
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens >= len(pieces)


def test_answer_has_lineage_headers(application: Application, job: FineTuningJob) -> None:
    body = {"model": job.fine_tuned_model, "messages": [{"role": "user", "content": "Hello"}]}
    answer = httpx.post(f"{application.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.headers["x-model-id"] == job.fine_tuned_model
    assert answer.headers["x-run-id"] == job.id
    file = application.client.files.retrieve(job.training_file)
    assert answer.headers["x-dataset-sha256"] == file.model_dump()["sha256"]
    assert answer.json()["system_fingerprint"].startswith("fp_")


def test_served_answers_equal_those_of_transformers(
    application: Application, job: FineTuningJob
) -> None:
    assert job.fine_tuned_model is not None
    directory = application.storage / "models" / job.fine_tuned_model
    torch.set_num_threads(1)
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info
    tokenizer = AutoTokenizer.from_pretrained(directory)
    for question, _ in read_handbook("heldout.jsonl")[:10]:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        output = model.generate(**prompt, max_new_tokens=64, do_sample=False)
        text = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        assert complete_chat(application.client, job.fine_tuned_model, question) == text


def test_job_has_events_metrics_and_logs(application: Application, job: FineTuningJob) -> None:
    events = list(application.client.fine_tuning.jobs.list_events(job.id, limit=5))
    messages = [event.message for event in events]
    assert messages[0] == "The fine-tune succeeded"
    assert any(message.startswith("Epoch 1 of") for message in messages), (
        "the pages of the list are contiguous"
    )
    assert len({event.id for event in events}) == len(events)
    metrics = httpx.get(f"{application.url}/v1/fine_tuning/jobs/{job.id}/metrics").json()["data"]
    assert [line["step"] for line in metrics] == list(range(1, len(metrics) + 1))
    assert metrics[-1]["loss"] < metrics[0]["loss"] / 10
    assert "Epoch 1 of" in httpx.get(f"{application.url}/v1/fine_tuning/jobs/{job.id}/logs").text
    assert job.trained_tokens == metrics[-1]["trained_tokens"]
    assert job.id in [listed.id for listed in application.client.fine_tuning.jobs.list()]


def test_stored_files_are_private(application: Application, job: FineTuningJob) -> None:
    """With the usual umask, because `serve run` is started without `tuneserve run`."""
    root = application.storage
    ray_folders = set((root / "runs").glob("*/ray"))  # public files, but in private folders
    assert root / "runs" / job.id / "ray" in ray_folders
    for path in (root, *root.rglob("*")):
        if not ray_folders.intersection((path, path.parent)):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


@pytest.fixture(scope="module")
def long_job(application: Application, job: FineTuningJob) -> FineTuningJob:
    """A fine-tune that would take hours, after its first steps."""
    started = application.client.fine_tuning.jobs.create(
        model="tuneserve-demo",
        training_file=job.training_file,
        hyperparameters={"n_epochs": 500},
        extra_body={"training": {"save_every_steps": 5, "max_failures": 0}},
    )
    url = f"{application.url}/v1/fine_tuning/jobs/{started.id}/metrics"
    wait_until(lambda: len(httpx.get(url).json()["data"]) > 2, 120, "the job trains")
    return started


@pytest.mark.long
def test_checkpoint_is_published_during_training(
    application: Application, long_job: FineTuningJob
) -> None:
    client = application.client
    url = f"{application.url}/v1/fine_tuning/jobs/{long_job.id}/checkpoints"
    newest = wait_until(lambda: httpx.get(url).json()["data"], 120, "a checkpoint exists")[0]
    begun = httpx.post(f"{url}/{newest['id']}/publish", json={"model": "mid-run"})
    assert begun.status_code == 202, begun.text
    wait_until(
        lambda: "mid-run" in [model.id for model in client.models.list()],
        120,
        "the model is published",
    )
    assert client.fine_tuning.jobs.retrieve(long_job.id).status == "running"
    assert complete_chat(client, "mid-run", "Hello!")
    described = httpx.get(f"{application.url}/v1/models/mid-run").json()
    assert (described["run_id"], described["aliases"]) == (long_job.id, [])
    assert described["checkpoint_step"] == newest["step_number"]


@pytest.mark.long
def test_failed_job_is_resumed(application: Application, long_job: FineTuningJob) -> None:
    client = application.client
    wait_until(
        lambda: client.fine_tuning.jobs.checkpoints.list(long_job.id).data,
        120,
        "a checkpoint exists",
    )

    def has_failed() -> bool:
        return client.fine_tuning.jobs.retrieve(long_job.id).status == "failed"

    kill_run_process(application, long_job.id, "RayTrainWorker")
    wait_until(has_failed, 60, "the job has failed")
    error = client.fine_tuning.jobs.retrieve(long_job.id).error
    assert error is not None
    assert "its process ended without a reason being recorded" in str(error.message)
    resumed = client.fine_tuning.jobs.resume(long_job.id)
    assert (resumed.status, resumed.error, resumed.finished_at) == ("queued", None, None)
    wait_until(lambda: count_resumptions(client, long_job.id) == 1, 120, "the job resumes")
    assert client.fine_tuning.jobs.retrieve(long_job.id).status == "running"


@pytest.mark.long
def test_job_resumes_after_loss_of_train_controller(
    application: Application, long_job: FineTuningJob
) -> None:
    before = count_resumptions(application.client, long_job.id)
    kill_run_process(application, long_job.id, "TrainController")
    wait_until(
        lambda: count_resumptions(application.client, long_job.id) > before, 120, "the job resumes"
    )
    assert any(
        "Ray Train's controller was lost" in message
        for message in read_messages(application.client, long_job.id)
    )


@pytest.mark.long
def test_killed_queue_does_not_interrupt_training(
    application: Application, long_job: FineTuningJob
) -> None:
    client = application.client
    processes = find_run_processes(application, long_job.id)
    num_resumptions = count_resumptions(client, long_job.id)
    metrics = application.storage / "runs" / long_job.id / "metrics.jsonl"
    find_queues = find_replica("FineTuningQueue")
    (queue,) = find_queues(application)
    queue.kill()
    wait_until(lambda: set(find_queues(application)) - {queue}, 120, "a new queue process runs")
    num_steps = len(durable.read_json_lines(metrics))
    wait_until(
        lambda: httpx.get(f"{application.url}/readyz").status_code == 200, 120, "the queue is ready"
    )
    wait_until(
        lambda: len(durable.read_json_lines(metrics)) > num_steps, 120, "the job trains more steps"
    )
    assert set(processes) <= set(find_run_processes(application, long_job.id))
    assert count_resumptions(client, long_job.id) == num_resumptions


@pytest.mark.long
def test_cancellation_ends_all_processes_of_run(
    application: Application, long_job: FineTuningJob
) -> None:
    client, started = application.client, long_job
    assert len(find_run_processes(application, started.id)) >= 3
    begin = time.monotonic()
    assert client.fine_tuning.jobs.cancel(started.id).status == "cancelled"
    wait_until(lambda: not find_run_processes(application, started.id), 10, "no process is left")
    print(f"cancelling took {time.monotonic() - begin:.1f} s")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            '{"messages": [{"role": "user", "content": "x"}]}\n',
            "no message is the assistant's.*line 1",
        ),
        ('{"text": "a"}\n{"text": 3}\n', r"'text' is 3, expected text \(line 2\)"),
        ("\n", "holds no rows"),
        ("hello", r"not JSON .*\(line 1\)"),
    ],
)
def test_invalid_rows_are_rejected_before_job_is_created(
    application: Application, tmp_path: Path, rows: str, message: str
) -> None:
    (tmp_path / "bad.jsonl").write_text(rows)
    client = application.client
    file = client.files.create(file=tmp_path / "bad.jsonl", purpose="fine-tune")
    before = len(client.fine_tuning.jobs.list().data)
    with pytest.raises(openai.BadRequestError, match=message):
        client.fine_tuning.jobs.create(model="tuneserve-demo", training_file=file.id)
    assert len(client.fine_tuning.jobs.list().data) == before


def test_errors_raise_exceptions_of_openai_client(application: Application) -> None:
    client = application.client
    with pytest.raises(openai.NotFoundError, match="'nobody'"):
        complete_chat(client, "nobody", "Hello")
    with pytest.raises(openai.NotFoundError, match="'ftjob-none'"):
        client.fine_tuning.jobs.retrieve("ftjob-none")
    with pytest.raises(openai.BadRequestError, match="learning_rate is 0"):
        client.fine_tuning.jobs.create(
            model="tuneserve-demo",
            training_file="file-handbook",
            extra_body={"training": {"learning_rate": 0}},
        )
    with pytest.raises(openai.BadRequestError, match="99 workers"):
        client.fine_tuning.jobs.create(
            model="tuneserve-demo",
            training_file="file-handbook",
            extra_body={"training": {"num_workers": 99}},
        )
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="latest", messages=[])
    with pytest.raises(openai.BadRequestError, match="not text"):
        client.files.create(file=("x.jsonl", b"\xff\xfe\x00"), purpose="fine-tune")


def test_requests_of_other_sites_are_rejected(application: Application) -> None:
    foreign = httpx.get(f"{application.url}/v1/models", headers={"host": "evil.example"})
    assert foreign.status_code == 403
    page = httpx.get(f"{application.url}/v1/models", headers={"origin": "http://evil.example"})
    assert page.status_code == 403


def test_exposed_grpc_ports_require_token(application: Application) -> None:
    """Every server that listens on more than localhost requires the cluster's token."""
    listening = set()
    for process in list_processes(application):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            listening |= {
                (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
                for connection in process.net_connections("tcp")
                if connection.status == psutil.CONN_LISTEN
            }
    assert ("127.0.0.1", httpx.URL(application.url).port) in listening
    exposed = [port for ip, port in listening if ip != "127.0.0.1"]
    assert len(exposed) <= 5, "more than one gRPC port of each replica is exposed"
    for port in exposed:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_stored_files_are_listed_in_stored_kinds(
    application: Application,
) -> None:
    assert find_unknown_files(application.storage) == []
