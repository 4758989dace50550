"""A small real server with the API's formats, for tests of its clients without Ray."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import FastAPI, Form, Request, UploadFile
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.client.client import ApiClient
from apps.client.connection import DEFAULT_TIMEOUTS, ClientTimeouts
from tests.apps.stub_chat import HOLD_TIMEOUT_S, HOSTILE, MAX_CHARACTERS, add_chat, refuse
from tests.apps.stub_evaluations import StubEvaluations, add_evaluation_routes
from tests.apps.stub_hub import StubHub, add_hub_routes
from tests.apps.stub_rows import StubRows, add_row_routes, find_known
from tests.apps.stub_runs import STEPS as STEPS
from tests.apps.stub_runs import StubRuns, add_run_routes

__all__ = ["HOSTILE", "MAX_CHARACTERS"]

Result = TypeVar("Result")
_PREVIEW = {
    "object": "file.preview",
    "format": "chat",
    "num_rows": 1200,
    "num_tokens": 4000,
    "num_learned_tokens": 1000,
    "num_dropped_rows": 0,
    "num_truncated_rows": 2,
    "max_length": 512,
}


class StubApi:
    """A stub of the HTTP API that records its requests."""

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[str, dict[str, Any]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}  # newest first
        self.evaluations: dict[str, list[dict[str, Any]]] = {}  # newest first
        self.files = [_describe_file("file-handbook", "handbook.jsonl")]
        self.bodies: list[dict[str, Any]] = []
        self.estimates: list[dict[str, Any]] = []  # the bodies of requests for estimates
        self.keys: list[str | None] = []
        self.previews: list[dict[str, Any]] = []
        self.queries: list[tuple[str, dict[str, str]]] = []
        self.num_sent_bytes = 0
        self.latest = "base-tuned"
        self.answering_models: list[str] = []  # of the next answers; then the requested model
        self.holds: list[threading.Event] = []  # events that the next model lists wait for
        self.default_holds: list[threading.Event] = []  # events that the next defaults wait for
        self.preview_holds: list[threading.Event] = []  # events that the next previews wait for
        self.closed_streams = 0
        self.merged: list[str] = []  # the models that adapters were merged into
        self.merges: list[dict[str, Any]] = []  # newest first
        self.are_merges_held = False  # while set, merges do not end
        self.merge_fault = ""  # the error of every merge
        self.permissions = [
            *("files.read", "files.write", "jobs.read", "jobs.write", "models.weights"),
            "models.write",
        ]
        self.deleted_models: list[str] = []
        self.rows = StubRows()
        self.checks: dict[str, dict[str, Any]] = {}  # of uploads by name: what their checks find
        self.num_unchecked_reads = 0  # how often an upload is read before its check ends
        self.evaluations_of_models = StubEvaluations()
        self.runs = StubRuns(HOSTILE)
        self.hub = StubHub()
        self.models: list[dict[str, Any]] = []  # in addition to the two that always exist
        self.busy_models: list[str] = []
        self.origins: dict[str, dict[str, str]] = {}  # headers of answers, by model
        self.contents: dict[str, str] = {}  # of the files that the key may read
        self.stream_holds: dict[str, threading.Event] = {}  # answers of a model wait for these

    def add_job(self, job_id: str, status: str, **changes: Any) -> dict[str, Any]:
        """Add a run to the front of the list, which is newest first."""
        job = {
            "id": job_id,
            "object": "fine_tuning.job",
            "created_at": int(time.time()) + len(self.jobs),
            "started_at": int(time.time()) - 3,
            "finished_at": None,
            "status": status,
            "model": "base",
            "fine_tuned_model": None,
            "training_file": "file-handbook",
            "training_filename": "handbook.jsonl",
            "user_provided_suffix": None,
            "error": None,
            "hyperparameters": {"n_epochs": 1},
            "training": {},
            "progress": None,
            **changes,
        }
        self.jobs = {job_id: job, **self.jobs}
        self.events[job_id] = []
        return job

    def add_event(self, job_id: str, message: str, **changes: Any) -> None:
        """Add an event to a run."""
        events = self.events[job_id]
        event = {"id": f"ftevent-{len(events) + 1:06d}", "created_at": int(time.time())}
        events.insert(0, {**event, "level": "info", "message": message, **changes})


def _describe_file(file_id: str, filename: str) -> dict[str, Any]:
    return {
        "id": file_id,
        "object": "file",
        "bytes": 10,
        "created_at": 1_700_000_000,
        "filename": filename,
        "purpose": "fine-tune",
        "status": "processed",
    }


def build_stub(stub: StubApi) -> FastAPI:
    app = FastAPI()
    add_run_routes(app, stub, refuse)
    _add_files(app, stub)
    add_row_routes(app, stub.rows, stub.files)
    add_evaluation_routes(app, stub.evaluations_of_models, refuse)
    add_hub_routes(app, stub.hub)
    _add_jobs(app, stub)
    _add_merges(app, stub)
    add_chat(app, stub)
    app.add_middleware(_ByteCounter, stub)
    return app


class _ByteCounter:
    """A middleware that counts the bytes of all bodies that the stub sends."""

    def __init__(self, app: ASGIApp, stub: StubApi) -> None:
        self._app, self._stub = app, stub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            self._stub.num_sent_bytes += len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, count)


def _add_files(app: FastAPI, stub: StubApi) -> None:
    @app.get("/v1/access")
    def show_access() -> dict[str, Any]:
        return {"object": "access", "key": None, "permissions": stub.permissions}

    @app.get("/v1/files")
    def list_files(request: Request) -> dict[str, Any]:
        stub.keys.append(request.headers.get("authorization"))
        stub.queries.append(("files", dict(request.query_params)))
        purpose = request.query_params.get("purpose")
        data = [file for file in stub.files if purpose in (None, file["purpose"])]
        return {"object": "list", "data": data}

    @app.get("/v1/files/{file_id}", response_model=None)
    def get_file(file_id: str) -> Any:
        found = [file for file in stub.files if file["id"] == file_id]
        if found and found[0]["status"] == "uploaded":
            stub.num_unchecked_reads -= 1
            if stub.num_unchecked_reads <= 0:
                found[0].update(stub.checks[found[0]["filename"]])
        return found[0] if found else refuse(404, f"There is no file {file_id!r}")

    @app.post("/v1/files", response_model=None)
    async def upload(file: UploadFile, purpose: Annotated[str, Form()]) -> Any:
        content = await file.read()
        if not content:
            return refuse(400, "the file is empty; expected rows as JSON, JSONL, CSV, …")
        assert purpose == "fine-tune"
        stub.files.insert(0, _describe_file(f"file-{len(stub.files)}", file.filename or ""))
        if file.filename in stub.checks:
            stub.files[0]["status"] = "uploaded"
        return stub.files[0]

    @app.get("/v1/files/{file_id}/preview", response_model=None)
    def preview(file_id: str, model: str, rows: int, training: str = "{}") -> Any:
        stub.previews.append(json.loads(training))
        if stub.preview_holds:
            assert stub.preview_holds.pop(0).wait(HOLD_TIMEOUT_S), "the preview was held too long"
        rows_of_file = stub.rows.rows.get(file_id)
        if rows_of_file and file_id != "file-handbook":
            if not find_known(rows_of_file, training):
                return refuse(400, f"the first row has the keys {', '.join(rows_of_file[0])}")
            texts = list(map(str, rows_of_file[0].values()))
            shown = [{"text": text, "learned": place > 0} for place, text in enumerate(texts)]
            row = {"line": stub.rows.first_line, "number": 1, "tokens": shown}
            return {**_PREVIEW, "format": "prompt_completion", "rows": [row]}
        if file_id != "file-handbook":
            return refuse(400, f"line 2: not JSON, found {HOSTILE}")
        tokens = [
            {"text": "<|im_start|>", "learned": False},
            {"text": f"user {HOSTILE}\n", "learned": False},
            {"text": f"{model} knows", "learned": True},
        ]
        lines = range(1, rows + 1)
        return {
            **_PREVIEW,
            "rows": [{"line": line, "number": line, "tokens": tokens} for line in lines],
        }


def _find_fault(body: dict[str, Any]) -> JSONResponse | None:
    """Return the refusal of a job with an invalid setting or name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", body.get("suffix") or "a"):
        return refuse(400, "'suffix': String should match pattern '^[A-Za-z0-9]'", "suffix")
    training = body.get("training", {})
    faults = {
        name: f"{name} is {training[name]}: it should be greater than 0"
        for name in ("learning_rate", "epochs")
        if training.get(name) == 0
    }
    return refuse(400, "; ".join(faults.values()), next(iter(faults))) if faults else None


def _add_jobs(app: FastAPI, stub: StubApi) -> None:
    @app.get("/v1/fine_tuning/defaults", response_model=None)
    def get_defaults(model: str, task: str = "causal_lm") -> Any:
        if model in stub.deleted_models:
            return refuse(404, f"no model has the id {model!r}")
        if stub.default_holds:
            assert stub.default_holds.pop(0).wait(HOLD_TIMEOUT_S), "the defaults were held too long"
        schema: dict[str, Any] = {
            "epochs": {
                "type": "integer",
                "description": "Passes over the rows.",
                "group": "optimizer",
            },
            "learning_rate": {
                "type": "number",
                "description": "Peak learning rate of AdamW.",
                "group": "optimizer",
            },
            "offload_optimizer": {
                "type": "boolean",
                "description": "Keep the optimizer's state and step in CPU memory; stages 1 to 3.",
                "group": "memory",
            },
            "warmup_ratio": {
                "type": "number",
                "description": "Share of the steps in which the learning rate rises from 0.",
                "group": "optimizer",
            },
            "max_length": {
                "anyOf": [{"type": "integer"}, {"type": "null"}],
                "description": "What becomes of a row with more tokens than 'max_length'.",
                "group": "data",
            },
            "precision": {
                "type": "string",
                "enum": ["bf16", "fp32"],
                "description": "Type of the model's weights as published; 'auto': 'precision'.",
                "group": "memory",
            },
            "columns": {
                "type": "object",
                "description": "Where the rows' own names differ: our key to theirs, as in "
                '{"prompt": "question", "completion": "answer"}.',
                "group": "data",
            },
            "adapter": {"anyOf": [{"type": "object"}, {"type": "null"}], "group": "adapter"},
            "wall_clock_breakdown": {
                "type": "boolean",
                "description": "Let DeepSpeed log how long each part of a step takes.",
                "group": "cluster",
            },
            "task_settings": {"type": "object", "properties": {}},
        }
        training: dict[str, Any] = {"epochs": 3, "learning_rate": 1e-3, "max_length": None}
        training |= {"precision": "bf16", "columns": {}, "adapter": None, "task_settings": {}}
        training |= {"offload_optimizer": False, "warmup_ratio": 0.05}
        training |= {"wall_clock_breakdown": False}
        if task == "sequence_classification":
            training["task_settings"] = {"problem_type": "auto", "labels": []}
            schema["task_settings"]["properties"] = {
                "problem_type": {"type": "string", "enum": ["auto", "regression"]},
                "labels": {"type": "array"},
            }
        return {
            "object": "fine_tuning.defaults",
            "model": model,
            "task": task,
            "tasks": ["causal_lm", "sequence_classification"],
            "training": training,
            "presets": {
                "quick": {"epochs": 1},
                "balanced": {},
                "adapter": {"adapter": {"rank": 4}, "learning_rate": 0.01},
            },
            "preset_descriptions": {
                "quick": "At most 20 steps on the first 200 rows: shows that the data and the "
                "settings work. The result has learned little.",
                "balanced": "The default settings of this model.",
                "adapter": "Learns a small addition to the model (LoRA) and leaves its weights as "
                "they are: less memory, and a result of a few megabytes.",
            },
            "schema": schema,
        }

    @app.post("/v1/fine_tuning/jobs/estimate", response_model=None)
    async def estimate_job(request: Request) -> Any:
        body = await request.json()
        stub.estimates.append(body)
        if fault := _find_fault(body):
            return fault
        training, rows = body.get("training", {}), stub.rows.rows.get(body["training_file"], [])
        is_own = bool(rows) and set(rows[0]) == {"question", "reply"}
        if is_own and not find_known(rows, json.dumps(training)):
            return refuse(400, "the first row has the keys question, reply", "training_file")
        epochs = body.get("training", {}).get("epochs", 3)
        return {
            "object": "fine_tuning.estimate",
            "num_rows": 1200,
            "num_steps": 40 * epochs,
            "num_tokens": 4000 * epochs,
            "is_exact": True,
            "tokens_per_s": 200.0,
            "training_s": 20.0 * epochs,
            "measured_by": "ftjob-old",
            "memory": {
                "device": "cpu",
                "num_workers": 2,
                "worker_bytes": 880_000_000,
                "is_measured": False,
                "total_bytes": 23_500_000_000,
                "free_bytes": 20_000_000_000,
            },
            "disk": {"needed_bytes": 300_000_000, "free_bytes": 50_000_000_000},
        }

    @app.post("/v1/fine_tuning/jobs", response_model=None)
    async def create_job(request: Request) -> Any:
        body = await request.json()
        stub.bodies.append(body)
        if fault := _find_fault(body):
            return fault
        return stub.add_job("ftjob-new", "queued", user_provided_suffix=body.get("suffix"))

    @app.get("/v1/fine_tuning/jobs/{job_id}", response_model=None)
    def get_job(job_id: str) -> Any:
        return stub.jobs.get(job_id) or refuse(404, f"there is no job {job_id!r}")

    @app.post("/v1/fine_tuning/jobs/{job_id}/{action}")
    def change_job(job_id: str, action: str) -> Any:
        statuses = {"cancel": "cancelled", "pause": "paused", "resume": "queued"}
        stub.jobs[job_id]["status"] = statuses[action]
        return stub.jobs[job_id]

    @app.get("/v1/fine_tuning/jobs/{job_id}/events", response_model=None)
    def list_events(
        request: Request, job_id: str, limit: int, newer_than: str | None = None
    ) -> Any:
        stub.queries.append(("events", dict(request.query_params)))
        events = stub.events[job_id]
        ids = [event["id"] for event in events]
        if newer_than is not None and newer_than not in ids:
            return refuse(404, f"newer_than is {newer_than!r}")
        end = len(ids) if newer_than is None else ids.index(newer_than)
        return {"object": "list", "data": events[:end][:limit]}

    @app.get("/v1/fine_tuning/jobs/{job_id}/evaluations")
    def list_evaluations(request: Request, job_id: str) -> dict[str, Any]:
        stub.queries.append(("evaluations", dict(request.query_params)))
        return {"object": "list", "data": stub.evaluations.get(job_id, [])}


def _add_merges(app: FastAPI, stub: StubApi) -> None:
    @app.post("/v1/models/{model_id}/merge", status_code=202)
    def merge_model(model_id: str, body: dict[str, str]) -> Any:
        stub.merges.insert(0, _describe_merge(model_id, body["model"], "merging"))
        return stub.merges[0]

    @app.get("/v1/models/{model_id}/merges")
    def list_merges(model_id: str) -> Any:
        found = [merge for merge in stub.merges if merge["adapter"] == model_id]
        for merge in found:
            if merge["status"] == "merging" and not stub.are_merges_held:
                error = {"status": 409, "message": stub.merge_fault, "code": "merge_failed"}
                merge["status"] = "failed" if stub.merge_fault else "succeeded"
                merge["error"] = error if stub.merge_fault else None
                stub.merged += [] if stub.merge_fault else [merge["id"]]
        return {"object": "list", "data": found}


def _describe_merge(adapter: str, model_id: str, status: str) -> dict[str, Any]:
    merge = {"id": model_id, "object": "model.merge", "adapter": adapter, "created": 1}
    return {**merge, "status": status, "error": None}


class LocalServer(uvicorn.Server):
    """A server in a thread of this process, on a free port."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_level="warning"))
        self._thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self.started:
            assert time.monotonic() < deadline, "the server did not start"
            self._thread.join(0.02)
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self.should_exit = True
        self._thread.join(20)


def ask(
    api: StubApi,
    call: Callable[[ApiClient], Awaitable[Result]],
    timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
) -> Result:
    """Run a call of the page's client and return its result."""

    async def run() -> Result:
        async with ApiClient(api.url, timeouts=timeouts) as client:
            return await call(client)

    return asyncio.run(run())


@contextmanager
def serve_stub_api() -> Iterator[StubApi]:
    """Serve a stub on a free port during the body."""
    stub = StubApi()
    with LocalServer(build_stub(stub)) as url:
        stub.url = url
        yield stub
