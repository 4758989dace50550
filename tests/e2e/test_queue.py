"""Six fine-tunes, two at a time, while the queue and then the whole application is killed."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai.types.fine_tuning import FineTuningJob

from benchmarks.application import find_free_port, write_deploy_file
from storage import durable
from tests.e2e.conftest import ROOT, Application, start_application, wait_until
from tests.tiny_model import build_tiny_model

pytestmark = pytest.mark.e2e

NUM_JOBS, NUM_AT_ONCE = 6, 2
TIMEOUT_S = 600.0
ROWS = [
    {"prompt": f"What comes after {number}{' please' * (number % 5)}?", "completion": f"{number}."}
    for number in range(60)
]
SETTINGS = {
    "num_workers": 1,
    "cpus_per_worker": 0.4,
    "epochs": 12,
    "learning_rate": 0.003,
    "micro_batch_tokens": 256,
    "save_every_steps": 20,
}
QUEUE = "ray::ServeReplica:tuneserve:FineTuningQueue"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny_model(tmp_path / "tiny")
    return tmp_path


@pytest.fixture
def applications(folder: Path) -> Iterator[list[Application]]:
    """What was started, to be stopped at the end."""
    started: list[Application] = []
    yield started
    for application in started:
        application.stop()


def start(folder: Path, port: int) -> Application:
    deploy = write_deploy_file(
        ROOT / "deploy.yaml",
        folder,
        port,
        base_models={"tiny": str(folder / "tiny")},
        max_concurrent_runs=NUM_AT_ONCE,
    )
    return start_application(deploy, folder, port)


def find_processes(application: Application) -> list[psutil.Process]:
    root = psutil.Process(application.process.pid)
    return [root, *root.children(recursive=True)]


def is_called(process: psutil.Process, name: str) -> bool:
    """Whether a process, which may have ended since it was listed, has a name or an argument."""
    try:
        return name in process.name() or name in process.cmdline()
    except psutil.NoSuchProcess:
        return False


def kill_everything(application: Application) -> None:
    """Kill every process of an application at once, those of runs included."""
    processes = find_processes(application)
    for process in processes:
        process.suspend()
    for process in processes:
        process.send_signal(signal.SIGKILL)
    application.process.wait()
    application.client.close()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


class Watcher:
    """Looks at all jobs as a client does, and checks what must always hold."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.jobs: list[FineTuningJob] = []

    def look(self) -> "Watcher":
        page = self.application.client.fine_tuning.jobs.list(limit=100)
        self.jobs = page.data[::-1]
        running = [job for job in self.jobs if job.status == "running"]
        assert len(running) <= NUM_AT_ONCE
        assert not [job for job in self.jobs if job.status in ("failed", "cancelled")]
        return self

    def list_steps(self, job_id: str) -> list[dict[str, float]]:
        path = self.application.storage / "runs" / job_id / "metrics.jsonl"
        return durable.read_json_lines(path)

    def are_in_mid_run(self) -> bool:
        """Whether as many as may compute do, each beyond its first checkpoint."""
        running = [job for job in self.look().jobs if job.status == "running"]
        steps = [self.list_steps(job.id) for job in running]
        return len(running) == NUM_AT_ONCE and all(len(taken) > 25 for taken in steps)

    def count_ended(self) -> int:
        return sum(job.status == "succeeded" for job in self.look().jobs)


def read_losses(watcher: Watcher, job_id: str) -> list[tuple[float, float]]:
    return [(line["step"], line["loss"]) for line in watcher.list_steps(job_id)]


def read_messages(application: Application, job_id: str) -> list[str]:
    events: Any = application.client.fine_tuning.jobs.list_events(job_id, limit=100)
    return [event.message for event in events][::-1]


def test_jobs_outlive_the_queue_and_the_application(
    folder: Path, applications: list[Application]
) -> None:
    port = find_free_port()
    application = start(folder, port)
    applications.append(application)
    rows = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    file = application.client.files.create(file=("rows.jsonl", rows.encode()), purpose="fine-tune")
    created = [
        application.client.fine_tuning.jobs.create(
            model="tiny", training_file=file.id, extra_body={"training": SETTINGS}
        ).id
        for _ in range(NUM_JOBS)
    ]
    watcher = Watcher(application)
    wait_until(watcher.are_in_mid_run, TIMEOUT_S, "two in mid-run")

    (queue,) = (process for process in find_processes(application) if is_called(process, QUEUE))
    drivers = [p.pid for p in find_processes(application) if is_called(p, "apps.finetune")]
    queue.kill()
    wait_until(lambda: watcher.count_ended() >= 2, TIMEOUT_S, "two have ended without the queue")
    assert drivers, "their processes were there"
    wait_until(watcher.are_in_mid_run, TIMEOUT_S, "the next two in mid-run")
    assert [job.id for job in watcher.jobs] == created

    interrupted = [job.id for job in watcher.jobs if job.status == "running"]
    kill_everything(application)
    application = start(folder, port)
    applications.append(application)
    watcher = Watcher(application)
    wait_until(lambda: watcher.count_ended() == NUM_JOBS, TIMEOUT_S, "all have ended")

    assert [job.id for job in watcher.jobs] == created
    begun = {job["id"]: job["started_at"] for job in httpx_jobs(application)}
    # Two that are handed over at once may get going in either order.
    for earlier, later in zip(created, created[NUM_AT_ONCE:], strict=False):
        assert begun[earlier] <= begun[later]
    reference = read_losses(watcher, created[0])
    assert [step for step, _ in reference] == list(range(1, len(reference) + 1))
    for job_id in created:
        messages = read_messages(application, job_id)
        assert messages.count("The fine-tune succeeded") == 1
        was_interrupted = any(message.startswith("Interrupted") for message in messages)
        assert was_interrupted == (job_id in interrupted)
        if was_interrupted:
            assert any(message.startswith("Going on after step") for message in messages)
        assert read_losses(watcher, job_id) == reference
    models = {model.id for model in application.client.models.list()}
    assert models == {"tiny", *(str(job.fine_tuned_model) for job in watcher.jobs)}
    assert len(models) == NUM_JOBS + 1


def httpx_jobs(application: Application) -> list[dict[str, Any]]:
    url = f"{application.url}/v1/fine_tuning/jobs"
    return list(httpx.get(url, params={"limit": 100}, timeout=30).json()["data"])
