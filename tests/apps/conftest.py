"""The application without Serve: real storage, a real tiny model, and a fake cluster for jobs."""

import asyncio
import json
import shutil
import struct
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from apps.file_store import FileStore
from apps.fine_tuning.cluster.job_runner import JobState
from apps.fine_tuning.cluster.tasks import Task
from apps.fine_tuning.default_settings import describe_defaults
from apps.fine_tuning.index.run_lookup import find_run
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.rows.row_pages import RowQuery
from apps.fine_tuning.rows.survey_objects import FindingKind
from apps.http_api.app import build_http
from apps.http_api.dependencies import Services
from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.request import ClassifyRequest, ImageInput
from serving.classification.wire import (
    Classification,
    ClassifyAnswer,
    EmbedAnswer,
    LabelScore,
)
from serving.openai.chat import ChatCompletionRequest
from serving.store.model_store import ModelStore
from serving.wire import Piece, StreamItem, ValidRequest, WholeAnswer, describe_origin
from storage.layout import StorageLayout, open_storage
from tests.apps.stub_api import StubApi, serve_stub_api
from tests.tiny_model import build_tiny_model
from training.run.folder import RunFolder
from training.run.run_record import RunRecord
from training.spec import TrainingSpec

ROW = {"prompt": "How many loaves?", "completion": "Twelve."}


class AppClient(httpx.AsyncClient):
    """A client of the ASGI application `app`, which is called without a socket."""

    def __init__(
        self,
        app: ASGIApp,
        base_url: str,
        address: tuple[str, int] = ("127.0.0.1", 123),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        transport = httpx.ASGITransport(app, client=address)
        super().__init__(transport=transport, base_url=base_url, headers=headers)
        self.app = app


@dataclass
class NotedJobs:
    """A fake cluster with two CPUs that records jobs and tasks; the test sets their states."""

    states: dict[str, JobState] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    logs: str = ""
    exits: dict[str, str] = field(default_factory=dict)
    task_failures: dict[tuple[str, str], str] = field(default_factory=dict)
    refusal: Exception | None = None
    tasks: list[Task] = field(default_factory=list)
    running: set[tuple[str, str]] = field(default_factory=set)
    nodes: list[dict[str, float]] = field(default_factory=lambda: [{"CPU": 2.0}])

    def start(self, job_id: str, command: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert job_id not in self.commands, "a job was started twice"
        self.commands[job_id] = command
        self.states[job_id] = "active"

    def find_state(self, job_id: str) -> JobState:
        return self.states.get(job_id, "unknown")

    def stop(self, job_id: str, timeout_s: float) -> bool:
        self.states[job_id] = "ended"
        return True

    def read_logs(self, job_id: str) -> str:
        return self.logs

    def find_exit(self, job_id: str) -> str | None:
        return self.exits.get(job_id)

    def find_task_failure(self, kind: str, subject: str) -> str | None:
        return self.task_failures.get((kind, subject))

    def start_task(self, storage: Path, task: Task) -> None:
        self.tasks.append(task)
        self.running.add((task.kind, task.subject))

    def is_running(self, kind: str, subject: str) -> bool:
        return (kind, subject) in self.running

    def list_nodes(self) -> list[dict[str, float]]:
        return self.nodes

    @property
    def started(self) -> list[str]:
        """The ids of the runs whose jobs were started, in that order."""
        return [job_id.rpartition("-")[0] for job_id in self.commands]


async def create_run(queue: RunQueue, file_id: str, **more: Any) -> RunFolder:
    job = await queue.create({"model": "latest", "training_file": file_id, **more})
    return find_run(queue.layout, job["id"])


async def reconcile_until(queue: RunQueue, is_reached: Callable[[], bool]) -> None:
    """Reconcile until a condition is true; fails after 30 s."""
    async with asyncio.timeout(30):
        while not is_reached():
            await queue.reconcile()
            await asyncio.sleep(0.01)


async def lose_run(queue: RunQueue, jobs: NotedJobs, run: RunFolder, step: int = 0) -> None:
    """Start the run's job, let it reach a step, and end it without a result."""
    await queue.reconcile()
    record = run.update_record(status="running")
    if step:
        run.metrics.add({"step": step})
    jobs.states[str(record.job_id)] = "ended"
    await queue.reconcile()


def copy_model(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


class Echo:
    """A generator that answers with the prompt, or raises the exception that the test sets."""

    def __init__(self, models: ModelStore) -> None:
        self._models = models
        self.failure: Exception | None = None

    async def stream(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[StreamItem, None]:
        answer = await self.answer(request, body, request_id)
        pieces = []
        for choice in answer.choices:
            words = choice.text.split()
            pieces += [Piece(choice.choice_index, f"{word} ") for word in words]
            pieces.append(choice._replace(text=""))
        for number, piece in enumerate(pieces):
            yield (piece,), None if number else answer.origin

    async def answer(
        self, request: ValidRequest, body: Mapping[str, Any], request_id: str
    ) -> WholeAnswer:
        if self.failure is not None:
            raise self.failure
        model = self._models.resolve(request.model)
        if isinstance(request, ChatCompletionRequest):
            prompt = request.messages[-1].content
        else:
            (text,) = request.prompt
            assert isinstance(text, str)
            prompt = text
        echoed = "".join(f"{word} " for word in prompt.split())
        choices = tuple(Piece(index, echoed, "stop", 3, 2) for index in range(request.n))
        return WholeAnswer(describe_origin(model), choices, num_prompt_tokens=3)

    async def check(self) -> None:
        if self.failure is not None:
            raise self.failure


class LengthClassifier:
    """A classifier that scores the length of each text or image, and embeds it as its length."""

    def __init__(self, models: ModelStore) -> None:
        self._models = models

    async def classify(
        self, request: ClassifyRequest, body: Mapping[str, Any], request_id: str
    ) -> ClassifyAnswer:
        model = self._models.resolve(request.model)
        model.check_answers("labels")
        results = tuple(
            Classification((LabelScore("long", len(content) / 100),))
            for content in (
                one.content if isinstance(one, ImageInput) else one[0] for one in request.inputs
            )
        )
        return ClassifyAnswer(describe_origin(model), results, num_prompt_tokens=len(results))

    async def embed(
        self, request: EmbeddingRequest, body: Mapping[str, Any], request_id: str
    ) -> EmbedAnswer:
        model = self._models.resolve(request.model)
        model.check_answers("vectors")
        vectors = tuple(struct.pack("<f", len(one)) for one in request.input)
        return EmbedAnswer(describe_origin(model), vectors, num_prompt_tokens=len(vectors))

    async def check(self) -> None:
        """Be always ready."""


class LocalFineTuning:
    """The queue in this process, with the asynchronous interface of a Serve handle."""

    def __init__(self, queue: RunQueue) -> None:
        self._queue = queue

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(await self._queue.create(body))

    async def estimate(self, body: dict[str, Any]) -> dict[str, Any]:
        return dict(await self._queue.estimate(body))

    async def preview(
        self, file_id: str, model: str, num_rows: int, training: Mapping[str, Any]
    ) -> dict[str, Any]:
        return dict(await self._queue.preview(file_id, model, num_rows, training))

    async def read_rows(self, file_id: str, query: RowQuery) -> dict[str, Any]:
        return dict(await self._queue.file_rows.read_page(file_id, query))

    async def survey_rows(
        self, file_id: str, model: str, training: Mapping[str, Any]
    ) -> dict[str, Any]:
        return dict(await self._queue.file_rows.survey(file_id, model, training))

    async def list_findings(
        self, file_id: str, model: str, training: Mapping[str, Any], kind: FindingKind
    ) -> list[dict[str, Any]]:
        found = await self._queue.file_rows.list_findings(file_id, model, training, kind)
        return [dict(one) for one in found]

    async def get_defaults(self, model: str, task: str | None) -> dict[str, Any]:
        return dict(describe_defaults(ModelStore(self._queue.layout), model, task))

    async def cancel(self, run_id: str) -> dict[str, Any]:
        return dict(await self._queue.cancel(run_id))

    async def pause(self, run_id: str) -> dict[str, Any]:
        return dict(await self._queue.pause(run_id))

    async def resume(self, run_id: str) -> dict[str, Any]:
        return dict(await self._queue.resume(run_id))

    async def extend(self, run_id: str, body: Mapping[str, object]) -> dict[str, Any]:
        return dict(await self._queue.extend(run_id, body))

    async def delete(self, run_id: str) -> None:
        await self._queue.delete(run_id)

    async def publish_checkpoint(
        self, run_id: str, checkpoint_id: str, model_id: str | None
    ) -> dict[str, Any]:
        return dict(await self._queue.publish_checkpoint(run_id, checkpoint_id, model_id))

    async def check(self) -> None:
        return None


def add_job(layout: StorageLayout, model: str) -> RunFolder:
    """Create a queued fine-tune of a model; no queue starts it."""
    run = RunFolder(layout.run("ftjob-000001"))
    request = {"model": model, "training_file": "file-rows"}
    record = RunRecord(id=run.path.name, created_at=1, writer="queue", request=request)
    run.create(TrainingSpec(base_model=model, train_file="-"), record)
    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def layout(tmp_path: Path, tiny_model: Path) -> StorageLayout:
    layout = open_storage(tmp_path / "storage")
    store = ModelStore(layout)
    store.add(tiny_model, "tiny")
    store.point_alias("latest", "tiny")
    return layout


@pytest.fixture
def jobs() -> NotedJobs:
    return NotedJobs()


@pytest.fixture
def queue(layout: StorageLayout, jobs: NotedJobs) -> Iterator[RunQueue]:
    queue = RunQueue(layout, jobs, reserved_cpus=0.5)
    yield queue
    queue.close()


def build_services(layout: StorageLayout, queue: RunQueue, **changes: Any) -> Services:
    """Build the services of the routes, with limits small enough for tests to reach."""
    models = ModelStore(layout)
    parts: dict[str, Any] = {
        "layout": layout,
        "files": FileStore(layout),
        "models": models,
        "text": Echo(models),
        "classifier": LengthClassifier(models),
        "fine_tuning": LocalFineTuning(queue),
        "evaluating": queue.evaluations,
        "max_upload_bytes": 10_000,
        "max_model_bytes": 10_000_000,
        "min_free_bytes": 0,
        "max_streams": 2,
        "max_stream_age_s": 60.0,
    }
    return Services(**{**parts, **changes})


@pytest.fixture
def services(layout: StorageLayout, queue: RunQueue) -> Services:
    return build_services(layout, queue)


@pytest.fixture
def client(services: Services) -> AppClient:
    """A client of the API; exceptions that the application does not handle are raised."""
    return AppClient(build_http(services, None), base_url="http://127.0.0.1:8000")


@pytest.fixture
def file_id(layout: StorageLayout, tmp_path: Path) -> str:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{json.dumps(ROW)}\n" * 4)
    FileStore(layout).add("file-rows", rows.read_bytes(), "rows.jsonl")
    return "file-rows"


@pytest.fixture
def api() -> Iterator[StubApi]:
    """A server with the API's formats."""
    with serve_stub_api() as stub:
        yield stub
